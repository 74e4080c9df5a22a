"""The lines above and below the panels: header, evidence, status and footer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field
from rich.style import Style

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.bars.footer import Footer
from fwtop.ui.bars.graph import Graph
from fwtop.ui.bars.rates_line import rates_line
from fwtop.ui.bars.verdict_line import verdict_line
from fwtop.ui.drawing.format import duration, number, percent
from fwtop.ui.drawing.layout import MINIMUM, Box, Lines
from fwtop.ui.drawing.style import (
    ACCENT,
    ALARM,
    BAD,
    BRAND,
    DIM,
    GOOD,
    NOTICE,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    fit,
    spread,
    width_of,
)
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.panels import gauge_line
from fwtop.ui.state.history import History
from fwtop.ui.state.path import CONNTRACK_ALARM, FULL


class HeaderState(Struct, frozen=True):
    """What the bars show that is not in the snapshot."""

    now: float  # Unix seconds
    paused: bool = False
    readonly: str = ""  # why nothing can be changed; "" if it can
    slow: bool = False


SOON_SECONDS = 600.0  # a table that is full before this is worth a word in the header


def header_lines(snapshot: Snapshot, history: History, state: HeaderState, width: int) -> list[Line]:
    """Write what is watched, how protected it is, and where the packets go."""
    alarm, tail = _resources(snapshot, width)
    return [
        _identity(snapshot, state, width),
        verdict_line(snapshot, state.now, width, alarm, slow=state.slow),
        rates_line(snapshot, history.before, min(width, 80) if state.slow else width, tail),
    ]


_LEAST_NETNS = 16  # cells of the namespace's name and the word before it
_RECORDINGS = {"session": " REPLAY ", "capture": " CAPTURE "}


def _identity(snapshot: Snapshot, state: HeaderState, width: int) -> Line:
    origin = snapshot.origin
    left: Line = [(" fwtop ", BRAND), (f" {snapshot.host}", STRONG)]
    where = ", ".join(origin.interfaces) if origin.kind == "live" else origin.file or origin.kind
    left.append((f"  {where}", TEXT))
    if origin.netns:
        left.append((f"  netns {origin.netns}", DIM))
    end: Line = [*_guardian(snapshot, state), ("  ", TEXT), *_clock(snapshot, state), (" ", TEXT)]
    windowed = [*_window(snapshot), *end]
    for right in ([*_sampling(snapshot), *end], windowed):
        if width_of(left) + width_of(right) + 2 <= width:
            return spread(left, right, width)
    room = width - width_of(windowed) - 2
    if origin.netns and room >= width_of(left[:-1]) + _LEAST_NETNS:  # what rates mean goes before a long name
        return spread(fit(left, room), windowed, width)
    if width_of(left) + width_of(end) + 2 <= width:
        return spread(left, end, width)
    if origin.kind in _RECORDINGS:  # the time that it shows matters more than its whole name
        return [*fit(left, max(width - width_of(end), 0)), *end]
    return spread(left, [*_guardian(snapshot, state), (" ", TEXT)], width)


def _window(snapshot: Snapshot) -> Line:
    span = snapshot.seconds
    words = f"{span:.0f} s" if 1 <= span < 60 else f"{span:.1f} s" if span < 1 else duration(span)
    return [(f"mean of {words}", DIM), ("  ", TEXT)]


def _clock(snapshot: Snapshot, state: HeaderState) -> Line:
    """Write the time of day; of a recording the time it shows, which is not now."""
    at = time.gmtime(min(max(state.now, 0.0), 253_402_300_799.0))
    if snapshot.origin.kind == "live":
        return [(time.strftime("%H:%M:%SZ", at), DIM)]
    return [(time.strftime("%Y-%m-%d %H:%M:%SZ", at), ACCENT)]


def _sampling(snapshot: Snapshot) -> Line:
    sampling = snapshot.tables.sampling
    words = "every packet" if sampling.one_in <= 1 else f"sample 1:{number(sampling.one_in)}"
    line: Line = [(words, DIM)]
    if sampling.watched < 1:
        line.append((", drops estimated", DIM))
    if sampling.lost:
        line.append((f", {number(sampling.lost)} lost", WARN))
    return [*line, ("  ", TEXT), *_window(snapshot)]


def _guardian(snapshot: Snapshot, state: HeaderState) -> Line:
    line: Line = []
    if state.paused:
        line += [(" PAUSED ", NOTICE), ("  ", TEXT)]
    if snapshot.guardian.startswith("lost"):
        return [*line, (" GUARDIAN LOST ", ALARM)]
    if snapshot.origin.kind in _RECORDINGS:
        return [(_RECORDINGS[snapshot.origin.kind], BRAND)]
    if state.readonly:
        return [*line, ("read-only", WARN)]
    return [*line, (f"rules {snapshot.guardian}", GOOD)] if snapshot.guardian else line


def _resources(snapshot: Snapshot, width: int) -> tuple[Line, Line]:
    """Return what belongs beside the verdict because it runs out, and the rest."""
    forms = conntrack_forms(snapshot.conntrack, 10)
    alarm = snapshot.conntrack is not None and snapshot.conntrack.fill >= CONNTRACK_ALARM
    urgent: Line = forms[0 if width >= 120 else -1] if alarm else []
    tail: Line = [] if alarm or not forms else list(forms[-1])
    if snapshot.softirq_share is not None:
        tail += [("  ", TEXT)] if tail else []
        tail += [("softirq ", DIM), (f"{percent(snapshot.softirq_share)} of CPU", TEXT)]
    return urgent, tail


def conntrack_forms(sample: ConntrackSample | None, gauge_width: int) -> list[Line]:
    """Return the connection-tracking figure in forms of decreasing width; a full table is always named."""
    if sample is None or not sample.max:
        return []
    fill = sample.fill
    if fill >= FULL:
        what = "evicting" if sample.early_drop > sample.drop else "refusing new connections"
        short: Line = [("conntrack FULL", ALARM)]
        lost = sample.early_drop or sample.drop
        return [[*short, (f" {what}", BAD)], [*short, (" evicting" if lost else "", BAD)], short]
    style = BAD if fill >= CONNTRACK_ALARM else TEXT
    share: Line = [("conntrack ", DIM), (percent(fill), style)]
    drawn: Line = [share[0], *gauge_line(fill, gauge_width), (f" {percent(fill)}", style)]
    left = sample.seconds_to_full
    if left is not None and left < SOON_SECONDS:
        return [
            [*drawn, (f", full in {duration(left)}", WARN)],
            [*share, (f", full in {duration(left)}", WARN)],
            share,
        ]
    return [drawn, share]


def pending(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the unconfirmed rules, the most urgent first."""
    found = [status for status in mitigations if status.state is State.PROVISIONAL]
    return sorted(found, key=lambda status: status.confirm_by or 0.0)


def not_acting(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the active rules that are not in effect."""
    return [status for status in mitigations if status.state in ACTIVE_STATES and not status.acting]


def status_line(
    snapshot: Snapshot | None,
    message: Line,
    state: HeaderState,
    width: int,
) -> Line:
    """Write the most urgent of: a rule that is not in effect, one to confirm, a message."""
    if snapshot is None:
        return message or [(" waiting for the first numbers …", DIM)]
    waiting = [] if state.readonly else pending(snapshot.mitigations)
    if message and waiting:
        prompt = _confirm_prompt(waiting[0], state.now)
        both = [*prompt, ("  ", TEXT), *message]
        return both if width_of(both) + 1 <= width else message
    if message:
        return message
    return _standing_line(snapshot, waiting, state, width)


def _standing_line(snapshot: Snapshot, waiting: list[RuleStatus], state: HeaderState, width: int) -> Line:
    if snapshot.guardian.startswith("lost"):
        why = snapshot.guardian.removeprefix("lost").removeprefix(":").strip() or "no answer"
        return [(" rules expire by themselves; quit and start fwtop again", BAD), (f"   ({why})", DIM)]
    broken = [] if state.readonly else not_acting(snapshot.mitigations)
    if broken:
        alarm: Line = [(f" RULE {broken[0].rule.id} IS NOT IN EFFECT ", ALARM)]
        alarm += [
            (f"  {KEY_MAP.label('repair')}", TITLE),
            (" restores it  ", TEXT),
            (safe_text(broken[0].not_acting), BAD),
        ]
        return fit(alarm, width)
    if waiting:
        return _confirm_prompt(waiting[0], state.now)
    return [(f" {note}", DIM) for note in snapshot.notes[:1]]


def _confirm_prompt(status: RuleStatus, now: float) -> Line:
    left = duration((status.confirm_by or now) - now)
    prompt: Line = [(f" rule {status.rule.id} is removed in {left} ", NOTICE)]
    prompt += [(f"  {KEY_MAP.label('keep')}", TITLE), (" keeps it  ", TEXT)]
    return [*prompt, (KEY_MAP.label("undo"), TITLE), (" removes it now", TEXT)]


_MESSAGE_SECONDS = 8.0


_BUSY = " …"  # what a message ends with while something is being done
_SPINNER = "|/-\\"
_SPIN_AFTER_SECONDS = 0.3


class StatusMessage(Struct):
    """The last message, shown for some seconds; one that ends with an ellipsis spins until it is replaced."""

    clock: Callable[[], float]
    line: Line = field(default_factory=list)
    said: float = 0.0

    def say(self, text: str, style: Style = TEXT) -> None:
        """Replace the message."""
        self.line = [(f" {text}", style)]
        self.said = self.clock()

    def current(self) -> Line:
        """Return the message while it is recent, with the time that something has taken so far."""
        passed = self.clock() - self.said
        if not self.line or not self.line[0][0].endswith(_BUSY):
            return self.line if passed < _MESSAGE_SECONDS else []
        if passed < _SPIN_AFTER_SECONDS:
            return self.line
        turn = _SPINNER[int(passed * 4) % len(_SPINNER)]
        return [(f" {turn}", WARN), *self.line, (f" {passed:.1f} s", DIM)]


class StatusBars:
    """The widgets of header, graph, status, footer and notice."""

    NAMES = ("header", "graph", "status", "footer", "notice")

    def __init__(self, message: StatusMessage) -> None:
        self.message = message
        self.history = History()
        self.in_bits = False  # what the graph shows
        self.cursor: int | None = None  # Unix second that the graph's cursor stands on
        self._footer = Footer()
        self.graph = Graph()
        special: dict[str, Lines] = {"footer": self._footer, "graph": self.graph}
        self._lines = {name: special.get(name) or Lines(name) for name in self.NAMES}

    def __iter__(self) -> Iterator[Lines]:
        """Yield the widgets, for the screen to freeze."""
        yield from self._lines.values()

    def __getitem__(self, name: str) -> Lines:
        """Return the widget of one of NAMES."""
        return self._lines[name]

    def place(self, boxes: dict[str, Box]) -> None:
        """Give the lines their boxes; those without one hide."""
        for name, widget in self._lines.items():
            widget.place(boxes.get(name))

    def show_too_small(self, width: int, height: int) -> None:
        """Show over the whole terminal that it is too small."""
        self._lines["notice"].place(Box(0, 0, width, height))
        self._lines["notice"].show(_too_small(width, height))

    def draw(
        self,
        snapshot: Snapshot | None,
        state: HeaderState,
        *,
        keys: bool,
        tab: str,
    ) -> None:
        """Write all bars; `keys`: the footer's keys are those in force, not a dialog's."""
        status = self._lines["status"]
        if not status.display:
            return
        width = status.box.width
        waiting = bool(snapshot and pending(snapshot.mitigations))
        with status.guarded():
            status.show([status_line(snapshot, self.message.current(), state, width)])
        with self._footer.guarded():
            self._draw_footer(snapshot, state, waiting=waiting, keys=keys, tab=tab)
        if snapshot is None:
            return
        header = self._lines["header"]
        with header.guarded():
            header.show(header_lines(snapshot, self.history, state, width))
        live = snapshot.origin.kind == "live"
        with self.graph.guarded():
            self._draw_graph(state.now if not live else self.history.second if state.paused else None)

    def _draw_footer(
        self, snapshot: Snapshot | None, state: HeaderState, *, waiting: bool, keys: bool, tab: str
    ) -> None:
        if keys:
            origin = snapshot.origin.kind if snapshot is not None else "live"
            lost = snapshot is not None and snapshot.guardian.startswith("lost")
            fixed = bool(state.readonly) or lost
            self._footer.write(tab=tab, waiting=waiting, readonly=fixed, origin="lost" if lost else origin)
        else:
            self._footer.clear()

    def _draw_graph(self, at: float | None) -> None:
        if self.graph.display:
            self.graph.write(self.history, in_bits=self.in_bits, cursor=self.cursor, at=at)


def _too_small(width: int, height: int) -> list[Line]:
    text = f"fwtop needs {MINIMUM[0]}×{MINIMUM[1]}; this is {width}×{height}"[:width]
    line: Line = [(" " * ((width - len(text)) // 2) + text, WARN)]
    return [*([[]] * ((height - 1) // 2)), line]
