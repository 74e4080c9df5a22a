"""The header: what is watched, how protected this machine is and why, and where the packets go."""

from __future__ import annotations

from msgspec import Struct
from rich.style import Style

from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.session import NOTICED, STOPPED, Flow, flow_of
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.numbers import DAY_AND_TIME, utc
from fwtop.render.rows.defence import holding, taken
from fwtop.render.verdict import Badge, Verdict, attack_pps, attacks_of, left_open, verdict_of
from fwtop.ui.format import about, bits, duration, number, percent, shortened
from fwtop.ui.header.clients import clients_forms
from fwtop.ui.header.trial import trial_parts
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.history import Clients, History
from fwtop.ui.lists.stages import CONNTRACK_ALARM, FULL, loses_most, soon_full
from fwtop.ui.style import (
    ACCENT,
    ALARM,
    BAD,
    BRAND,
    BUTTON,
    CALM,
    DIM,
    ELSEWHERE,
    FOREIGN,
    GOOD,
    NOTICE,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    Span,
    fit,
    spread,
    width_of,
)


class HeaderState(Struct, frozen=True):
    """What the bars show that is not in the snapshot."""

    now: float  # Unix seconds
    paused: bool = False
    behind: bool = False  # other attacks are on than the lists show, which stand still
    readonly: str = ""  # why nothing can be changed; "" if it can
    slow: bool = False
    press: str = ""  # the keys that help most against what reaches services
    does: str = ""  # what they do, in brief


def header_lines(snapshot: Snapshot, history: History, state: HeaderState, width: int) -> list[Line]:
    """Write what is watched, how protected it is, and where the packets go."""
    alarm, tail = _resources(snapshot, width, eased=verdict_of(snapshot, state.now).stopped >= STOPPED)
    return [
        _identity(snapshot, state, width),
        verdict_line(snapshot, state, width, alarm),
        rates_line(snapshot, history.before, min(width, 80) if state.slow else width, tail),
    ]


_RECORDINGS = {"session": " REPLAY ", "capture": " CAPTURE "}


def _identity(snapshot: Snapshot, state: HeaderState, width: int) -> Line:
    origin = snapshot.origin
    left: Line = [(" fwtop ", BRAND), (f" {snapshot.host}", STRONG)]
    where = ", ".join(origin.interfaces) if origin.kind == "live" else origin.file or origin.kind
    left.append((f"  {where}", TEXT))
    if origin.netns:
        left.append((f"  netns {origin.netns}", DIM))
    end: Line = [*_guardian(snapshot, state), ("  ", TEXT), *_clock(snapshot, state), (" ", TEXT)]
    windowed = [*_mean_over(snapshot), *end]
    for right in ([*_sampling(snapshot), *end], windowed):
        if width_of(left) + width_of(right) + 2 <= width:
            return spread(left, right, width)
    room = width - width_of(windowed) - 2
    if origin.netns and room >= width_of(left[:-1]) + 16:  # cells; what rates mean goes before a long name
        return spread(fit(left, room), windowed, width)
    if width_of(left) + width_of(end) + 2 <= width:
        return spread(left, end, width)
    if origin.kind in _RECORDINGS:  # the time that it shows matters more than its whole name
        return [*fit(left, max(width - width_of(end), 0)), *end]
    return spread(left, [*_guardian(snapshot, state), (" ", TEXT)], width)


def _mean_over(snapshot: Snapshot) -> Line:
    span = snapshot.seconds
    words = f"{span:.0f} s" if 1 <= span < 60 else f"{span:.1f} s" if span < 1 else duration(span)
    return [(f"mean of {words}", DIM), ("  ", TEXT)]


def _clock(snapshot: Snapshot, state: HeaderState) -> Line:
    """Write the time of day; of a recording the time it shows, which is not now."""
    if snapshot.origin.kind == "live":
        return [(utc(state.now), DIM)]
    return [(utc(state.now, DAY_AND_TIME), ACCENT)]


def _sampling(snapshot: Snapshot) -> Line:
    sampling = snapshot.tables.sampling
    some = "nearly every packet" if sampling.one_in < 1.05 else f"sample 1:{number(sampling.one_in)}"
    words = "every packet" if sampling.one_in <= 1 else some
    line: Line = [(words, DIM)]
    if sampling.watched < 1:
        line.append((", drops estimated", DIM))
    if sampling.lost:
        line.append((f", {number(sampling.lost)} lost", WARN))
    return [*line, ("  ", TEXT), *_mean_over(snapshot)]


def _guardian(snapshot: Snapshot, state: HeaderState) -> Line:
    line: Line = []
    if state.paused:
        line += [(" PAUSED ", NOTICE), ("  ", TEXT)]
    if snapshot.guardian.startswith("lost"):
        return [*line, (" GUARDIAN LOST ", ALARM)]
    if snapshot.origin.kind in _RECORDINGS:
        return [(_RECORDINGS[snapshot.origin.kind], BRAND)]
    return [*line, ("read-only", WARN)] if state.readonly else line


def _resources(snapshot: Snapshot, width: int, *, eased: bool) -> tuple[Line, Line]:
    """Return what runs out, for beside the verdict, and the rest; `eased`: the attacks are stopped."""
    sample, urgent, tail = snapshot.conntrack, Line(), Line()
    if sample is not None and sample.max:
        left = soon_full(snapshot)
        if sample.fill < FULL and left is not None:
            urgent = [(f"✖ conntrack full in {about(left)}", ALARM)]
        elif sample.fill >= CONNTRACK_ALARM:
            urgent = _conntrack(sample, long=width >= 120, eased=eased)
        else:
            tail = _conntrack(sample, long=False)
    if snapshot.softirq_share is not None:
        tail += [("  ", TEXT)] if tail else []
        tail += [("softirq ", DIM), (f"{percent(snapshot.softirq_share)} of CPU", TEXT)]
    return urgent, tail


def _conntrack(sample: ConntrackSample, *, long: bool, eased: bool = False) -> Line:
    """Write how full the connection table is; the long form also what becomes of it."""
    fill = sample.fill
    if fill >= FULL:
        told = "draining" if sample.growth_per_s < 0 else ""
        told = "refusing new connections" if sample.drop else told
        told = "evicting" if sample.early_drop > sample.drop else told
        mild = not sample.drop and (eased or told == "draining")
        mark, style = ("", WARN) if mild else ("✖ ", ALARM)
        return [(f"{mark}conntrack FULL", style), *([(f" {told}", style)] if long and told else [])]
    return [("conntrack ", DIM), (percent(fill), BAD if fill >= CONNTRACK_ALARM else TEXT)]


_STYLES: dict[Badge, Style] = {
    Badge.HARM: ALARM,
    Badge.UNPROTECTED: ALARM,
    Badge.TRIAL: NOTICE,
    Badge.PARTLY: ALARM,
    Badge.PROTECTED: CALM,
    Badge.ALREADY: FOREIGN,
    Badge.KERNEL: BUTTON,
    Badge.PAUSED: NOTICE,
    Badge.ENDED: CALM,
    Badge.CALM: CALM,
    Badge.NOT_JUDGED: NOTICE,
    Badge.ABUSE: NOTICE,
    Badge.UNUSUAL: BRAND,
    Badge.RECORDED: ALARM,
}


def verdict_line(snapshot: Snapshot, state: HeaderState, width: int, alarm: Line) -> Line:
    """Write badge and reason, keys and `alarm` at the right. The least important parts give way first."""
    verdict = verdict_of(snapshot, state.now)
    keys, reasons = _keys(verdict, snapshot, state), _reasons(verdict, snapshot, attacks_of(snapshot))
    whole = not state.slow and width >= 100
    forms = [(whole, [keys, alarm]), (False, [keys, alarm])]
    if state.does and width >= _WIDE and keys[:1] == [_PRESS] and not verdict.spares:  # why matters more
        forms.insert(0, (whole, [[*keys, (f": {state.does}", TEXT)], alarm]))
    if verdict.rule is not None or verdict.loss is not None:  # what it does decides which key to press
        forms.append((False, [keys]))
    for bar, ends in forms:
        right: Line = [span for part in ends if part for span in (("  ", TEXT), *part)]
        right += [(" ", TEXT)] if right else []
        line, room = _badge(verdict, bar=bar), width - width_of(right) - 1
        if not reasons or width_of(line) + width_of(reasons[0]) + 2 <= room:
            break
    for place, part in enumerate(reasons):
        if width_of(line) + width_of(part) + 2 <= room:
            line += [("  ", TEXT), *part]
        elif place == 0:
            left = room - width_of(line) - 2  # what a share is of gives way before the share
            spans = next((n for n in range(len(part), 1, -1) if width_of(part[:n]) <= left), 1)
            words = _few_words(part[0][0], left)
            line = fit([*line, ("  ", TEXT), (words, part[0][1]), *part[1:spans]], room)
    return spread(line, right, width)


def _few_words(text: str, room: int) -> str:
    """Shorten a title; of several as many as fit whole, or their number alone: the list below has all."""
    number, _, names = text.partition(": ")
    if len(text) <= room or ", " not in names:
        return shortened(text, room)
    titles = names.split(", ")
    forms = (f"{number}: {', '.join(titles[:-left])} +{left}" for left in range(1, len(titles)))
    return next((form for form in forms if len(form) <= room), shortened(number, room))


def _badge(verdict: Verdict, *, bar: bool) -> Line:
    style = _STYLES[verdict.badge]
    if verdict.badge is Badge.PARTLY:
        part = f" {verdict.stopped * 100:.0f} % STOPPED" if verdict.attack_pps > 0 else ""
        return [(f" PARTLY{part} ", style)]
    if verdict.badge is not Badge.TRIAL:
        return [(f" {'✖ ' if verdict.badge is Badge.HARM else ''}{verdict.badge} ", style)]
    line: Line = [(f" TRIAL {duration(verdict.seconds_left)} ", style)]
    if bar:
        full = round(verdict.left * 20)
        line += [(" " + "█" * full + "░" * (20 - full), WARN)]
    return line


_WIDE = 120  # cells from which what a key does is said beside it
_PRESS: Span = ("press", TEXT)
_REACHED = (Badge.UNPROTECTED, Badge.PARTLY, Badge.ABUSE)
_DONE = (Badge.PROTECTED, Badge.ALREADY, Badge.KERNEL, Badge.ENDED, Badge.CALM, Badge.UNUSUAL)


def _keys(verdict: Verdict, snapshot: Snapshot, state: HeaderState) -> Line:
    """Write which key to press next, where it works: that there is nothing to do is an answer, too."""
    if snapshot.guardian.startswith("lost"):
        return [(KEY_MAP.label("quit"), NOTICE), (" quit", TEXT)]
    acts = not state.readonly and snapshot.origin.kind == "live"
    if acts and (verdict.loss is not None or verdict.rule is not None):
        keep: Line = [(KEY_MAP.label("keep"), NOTICE), (" keep  ", TEXT)] if verdict.loss is None else []
        return [*keep, (KEY_MAP.label("undo"), TITLE if keep else NOTICE), (" remove", TEXT)]
    if state.behind:
        return [("lists paused, ", WARN), _PRESS, (" ", TEXT), (KEY_MAP.label("pause"), NOTICE)]
    if not acts:
        return []
    if (verdict.badge in _REACHED or verdict.spares) and state.press:
        return [
            _PRESS,
            *(span for key in state.press.split() for span in ((" ", TEXT), (key, NOTICE))),
        ]
    return [("nothing to do", DIM)] if verdict.badge in _DONE and not verdict.spares else []


def _reasons(verdict: Verdict, snapshot: Snapshot, attacks: tuple[Incident, ...]) -> list[Line]:
    missing: list[Line] = [[(line, WARN)] for line in (snapshot.judgement.not_judged,) if line]
    if verdict.badge in (Badge.HARM, Badge.TRIAL):
        of_rule = trial_parts(verdict, attacks, snapshot)
        return [*of_rule[:1], *missing, *of_rule[1:]]
    if verdict.badge is Badge.CALM:
        notes: list[Line] = [[(note, WARN)] for note in snapshot.notes[:1]]
        return [[("no attack", TEXT)], *notes]
    if not attacks:
        return missing or _of_the_past(snapshot)
    whose = "it" if len(attacks) == 1 else "them"
    named = _of_attack(attacks[0], snapshot) if len(attacks) == 1 else _of_several(attacks, snapshot)
    if verdict.badge is Badge.RECORDED:
        return named
    if verdict.badge is Badge.NOT_JUDGED:
        return [*missing, [("before: ", DIM), *named[0]], *named[1:]]
    advice: list[Line] = [[(verdict.advice, TEXT)]] if verdict.advice else _of_drops(verdict, whose)
    return [named[0], *advice, *named[1:]]


def _of_the_past(snapshot: Snapshot) -> list[Line]:
    """Write what sent its last packet when, the latest first, and what is left of it."""
    past = sorted((one for one in snapshot.judgement.attacks if not one.is_on), key=lambda one: -one.last)
    on = (one for one in snapshot.judgement.attacks if one.is_on)  # effects, such as a full table
    left = [one for one in on if one.mine_share + one.other_share < STOPPED]
    lines = [_of_one_past(one, snapshot.at) for one in past]
    opened: list[Line] = [[(holding(one), BAD)] for one in left_open(snapshot)]
    return [*opened, *lines, *([("still there: ", DIM), (one.title, WARN)] for one in left)]


def _of_one_past(one: Incident, now: float) -> Line:
    if one.held_pps is None:
        return [(one.title, STRONG), (f", last packet {duration(now - one.last)} ago", TEXT)]
    sent = f": its senders still send {number(one.held_pps)} pps" if one.held_pps else ""
    return [("my rules hold off ", TEXT), (one.title, STRONG), (sent, TEXT)]


def _of_drops(verdict: Verdict, whose: str) -> list[Line]:
    """Write who drops which share of the attacks' packets."""
    parts = (
        ("my rules", verdict.mine),
        ("other firewall", verdict.other),
        ("kernel", verdict.kernel - verdict.lost),
        ("full queues", verdict.lost),
    )
    seen = [(name, percent(part)) for name, part in parts if part >= NOTICED]
    if len(seen) == 1:
        name, part = seen[0]
        return [[(f"{name} {'drop' if name.endswith('s') else 'drops'} {part} of {whose}", TEXT)]]
    return [[(f"dropped: {', '.join(f'{part} by {name}' for name, part in seen)}", TEXT)]] if seen else []


def _of_several(attacks: tuple[Incident, ...], snapshot: Snapshot) -> list[Line]:
    titles = ", ".join(attack.title for attack in attacks)
    rate, held = attack_pps(snapshot), [[(words, BAD)] for one in attacks if (words := holding(one))]
    sizes: list[Line] = [[(f"{number(rate)} pps", TEXT)]] if rate >= 1 else []
    return [[(f"{len(attacks)} attacks: {titles}", STRONG)], *held, *sizes]


def _of_attack(attack: Incident, snapshot: Snapshot) -> list[Line]:
    rate, whole = min(attack.pps, snapshot.tables.totals.pps), snapshot.tables.totals.pps
    parts: list[Line] = [[(attack.title, STRONG)]]
    if words := taken(attack.severity):
        parts.append([(words, BAD if attack.severity.is_near else TEXT)])
    parts += [[("sources forged", WARN)]] if attack.spoofed else []
    if attack.holds:
        parts.insert(1, [(holding(attack), BAD)])
    else:
        parts.append([(f"{percent(rate / whole if whole else 0.0)} of all packets", TEXT)])
        parts.append([(f"{number(rate)} pps", TEXT)])
    parts.append([(f"for {duration(snapshot.at - attack.since)}", DIM)])
    parts.append([(f"{attack.confidence * 100:.0f} % sure", DIM)])
    return parts


_TRACE = 0.001  # of all packets: the sum is right to three digits without it
_LEAST_PPS = 0.05  # less is written as none
_BETWEEN: Span = (" │ ", DIM)
_LOST = "lost"  # as something was full


def rates_line(snapshot: Snapshot, before: Clients | None, width: int, tail: Line) -> Line:
    """Write the rates in the longest form that fits, `tail` behind them if there is room."""
    flow = flow_of(snapshot)
    totals = snapshot.tables.totals
    if flow is None:
        line: Line = [(f" recorded {number(totals.pps)} pps {bits(totals.bps)}", STRONG)]
        return [*line, ("  what got through, and what clients got, is not recorded", DIM)]
    attack = any(one.is_on for one in snapshot.judgement.harmful)
    shortest: Line = []
    for form in _forms(snapshot, flow, before, attack=attack):
        shortest = _joined(form)
        if width_of(shortest) <= width:
            break
    room = width - width_of(shortest) - 4
    return [*shortest, _BETWEEN, *tail] if tail and width_of(tail) <= room else shortest


def _forms(snapshot: Snapshot, flow: Flow, before: Clients | None, *, attack: bool) -> list[list[Line]]:
    """Return the line's parts from the longest form to the shortest.

    Each adds up to what arrives, and names whoever drops most where there is room. What clients get is the
    last to go: it is the answer to a question that nothing else on a small screen answers.
    """
    arrives: Line = [(f"arrives {number(flow.arrives)} pps", STRONG)]
    bare: Line = [(f"arrives {number(flow.arrives)}", STRONG)]
    sized: Line = [*arrives, (f" {bits(flow.bps)}", TEXT)]
    verdict = verdict_of(snapshot, 0.0)
    harms = verdict.loss is not None
    every = [
        ("my rules", flow.mine, BAD if harms else GOOD),
        ("other firewall", flow.other, ELSEWHERE),
        ("kernel", flow.kernel - flow.lost, DIM),
    ]
    if flow.lost >= _LEAST_PPS:  # something is full: that protects nobody
        every.append((f"{_LOST} at {loses_most(snapshot)}", flow.lost, BAD))
    trace = _TRACE * flow.arrives
    if abs(flow.unaccounted) >= max(trace, _LEAST_PPS):
        every.append(("unaccounted", flow.unaccounted, WARN))
    drops = [part for part in every if abs(part[1]) >= _LEAST_PPS]
    is_reached = attack and verdict.badge is not Badge.KERNEL and verdict.stopped < STOPPED
    reached = flow.reaches, BAD if is_reached else TEXT if harms else GOOD
    reaches, reach = (_part(name, *reached) for name in ("REACHES YOU", "REACHES"))
    whole, some = [_part(*part) for part in every], [_part(*part) for part in drops]
    mine = some if drops[:1] == every[:1] else [whole[0], *some]
    few, fewest = (_most([part for part in drops if abs(part[1]) >= trace], named) for named in (2, 1))
    summed = [_part("drops", sum(pps for _, pps, _ in drops), TEXT)] if drops else []
    least, short, long = clients_forms(snapshot, before, attack=attack)
    return [
        [sized, *whole, reaches, *long],
        [sized, *mine, reaches, *long],
        [sized, *mine, reaches, *short],
        [arrives, *mine, reaches, *short],
        [bare, *some, reaches, *short],
        [bare, *few, reaches, *short],
        [bare, *few, reaches, *least],
        [bare, *few, reach, *least],
        [bare, *fewest, reach, *least],
        [bare, *summed, reach, *least],
        [bare, reaches, *least],
        [reaches, *least],
        [reaches],
    ]


def _most(drops: list[tuple[str, float, Style]], named: int) -> list[Line]:
    """Name who drops most in a short word, and of more than are to be `named` sum the others up."""
    parts = [(name.removeprefix("other ").partition(" at ")[0], pps, style) for name, pps, style in drops]
    if len(parts) > named:
        first = max(parts, key=lambda part: part[1])
        rest = "rest", TEXT
        if first[0] != _LOST and any(name == _LOST and pps >= NOTICED * first[1] for name, pps, _ in parts):
            rest = f"{_LOST}+rest", BAD
        parts = [first, (rest[0], sum(pps for _, pps, _ in parts) - first[1], rest[1])]
    return [_part(*part) for part in parts]


def _part(name: str, pps: float, style: Style) -> Line:
    shown = style if abs(pps) >= _LEAST_PPS else TEXT
    return [(f"{name} ", DIM if name.islower() else TEXT), (number(pps), shown)]


def _joined(parts: list[Line]) -> Line:
    line: Line = [(" ", TEXT)]
    for place, part in enumerate(parts):
        line += [_BETWEEN, *part] if place else part
    return line
