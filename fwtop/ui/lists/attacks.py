"""The attacks, and previews in words: what rules stop and whom they hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.style import Style

from fwtop.model.harm import ClientHarm
from fwtop.model.rule import PlanView, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, STOPPED
from fwtop.model.traffic.severity import Resource
from fwtop.model.traffic.snapshot import Incident, Proposal, Snapshot
from fwtop.render.rows.defence import ATTACK, holding, taken
from fwtop.render.verdict import worst_loss
from fwtop.rules.kinds import of
from fwtop.ui.format import about, duration, number, percent, shortened, wrap
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.numbers import HARM_LIMIT
from fwtop.ui.lists.rows import Fold
from fwtop.ui.lists.stages import CONNTRACK_ALARM, FULL
from fwtop.ui.lists.table import Cell, CellContext, View, columns_of, trend_cell
from fwtop.ui.style import (
    BAD,
    DIM,
    ELSEWHERE,
    GOOD,
    LABEL,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    labelled,
    paragraph,
    width_of,
)


def of_one(cell: Cell) -> Cell:
    """Leave a cell empty where several rows are folded."""
    return lambda item, context, width: [] if isinstance(item, Fold) else cell(item, context, width)


def how_to_turn(fold: Fold) -> Line:
    """Write the key that unfolds."""
    return [(f"  {KEY_MAP.label('open')}", TITLE), (" folds" if fold.is_open else " unfolds", DIM)]


def _folded(fold: Fold, width: int) -> Line:
    """Name those that nothing has to be done about, as far as there is room."""
    line: Line = [(f"{len(fold.rows)} don't reach you", TEXT), *how_to_turn(fold)]
    for place, one in enumerate(fold.rows):
        named: Line = [("  ", TEXT), (one.letter, TITLE), (f" {_name(one)}", DIM)]
        if width_of([*line, *named]) > width - 2 and place:
            break
        line += named
    return line


def _name(item: Incident) -> str:
    return item.title.partition(" on port ")[0] if item.target else item.title


def _title(item: Incident | Fold, _: CellContext, width: int) -> Line:
    if isinstance(item, Fold):
        return _folded(item, width)
    if item.kind == FULL_TABLE:
        return [("conntrack table", STRONG)]
    mark: Line = [(" spoofed", WARN)] if item.spoofed and item.sources != "spoofed" else []
    return [(shortened(_name(item), width - width_of(mark)), STRONG), *mark]


def _pressure(context: CellContext) -> tuple[str, ...]:
    """Say what becomes of connections when the table is full, or how it moves; the long form first."""
    sample = context.snapshot.conntrack
    if sample is None:
        return ()
    if sample.fill < FULL:
        return _movement(sample)
    lost = max(sample.early_drop, sample.drop) / max(context.snapshot.seconds, 1e-3)
    verb = "evicting" if sample.early_drop > sample.drop else "refusing"
    return (f"{verb} {number(lost)}/s" if lost else "full",)


def _movement(sample: ConntrackSample) -> tuple[str, ...]:
    """Say where the table's fill goes, and when it is there."""
    if sample.seconds_to_full is not None:
        return f"filling, full in {about(sample.seconds_to_full)}", "filling"
    if sample.growth_per_s >= 0:
        return ("not growing",)
    left = sample.seconds_to_fill(CONNTRACK_ALARM)
    return ("draining",) if left is None else (f"draining, normal in {about(left)}", "draining")


def _target(item: Incident, context: CellContext, width: int) -> Line:
    sample = context.snapshot.conntrack
    if item.kind == FULL_TABLE and sample is not None:
        fill: Line = [(f"{number(sample.count)}/{number(sample.max)}", TEXT)]
        forms: list[Line] = [[*fill, (f" {words}", BAD)] for words in _pressure(context)]
        return next((form for form in forms if width_of(form) <= width), fill)
    protocol, _, port = item.target.partition(" from ")
    short = f"{protocol} {port}→" if port else item.target  # as signatures are written
    return [(short or "–", TEXT if short else DIM)]


_NAMES: dict[Resource | None, tuple[str, ...]] = {  # the longer first, the last in the narrowest column
    Resource.TABLE: ("conntrack", "ct table"),
    Resource.BACKLOG: ("backlog",),
    Resource.ACCEPT: ("accept q",),
    Resource.UPLINK: ("uplink",),
}


def _severity(item: Incident, _: CellContext, width: int) -> Line:
    """Write what it exhausts, and how far if that was measured, or its class."""
    one = item.severity
    style = DIM if not one.is_harmful else BAD if one.is_near else WARN
    if one.exhausts is None or one.nearness is None:
        return [(one.harm.value, style)]
    names = _NAMES.get(one.exhausts, (str(one.exhausts),))  # without a name a share says nothing
    forms = *filter(None, (taken(one), taken(one, names[0]))), *names
    return [(next((form for form in forms if len(form) <= width), names[-1]), style)]


def _reaches(item: Incident, context: CellContext, _: int) -> Line:
    if item.kind == FULL_TABLE:
        cause = context.snapshot.judgement.incident(item.cause)
        return [(f"effect of {cause.letter}", WARN)] if cause is not None else []
    if not context.is_live:
        return [("unrecorded", DIM)]
    if not item.is_on:  # what it was is no longer so
        return [("–", DIM)]
    if item.holds:
        return []
    share = item.reaching_share
    mine, on_purpose = item.mine_share, item.mine_share + item.other_share
    is_good = mine >= NOTICED and worst_loss(context.snapshot) is None
    stopped: Line = [(" ✔", GOOD if is_good else TEXT)] if on_purpose >= STOPPED else []
    return [(percent(share), BAD), (" ✖", BAD)] if share >= NOTICED else [(percent(share), TEXT), *stopped]


def _age(item: Incident, context: CellContext, width: int) -> Line:
    if not item.is_on and item.last:
        if item.held_pps is not None:
            style = GOOD if worst_loss(context.snapshot) is None else BAD
            return [("held off" if width >= len("held off") else "held", style)]
        return [("ended" if item.ended is not None else "paused", WARN if item.ended is None else DIM)]
    return [(duration(context.seen - item.since), DIM)]


def _dropped(item: Incident, share: float, style: Style, context: CellContext) -> Line:
    if not context.is_live:
        return []
    if not item.is_on:  # what it was is no longer so
        return [("–", DIM)]
    return [(percent(share), style if share >= NOTICED else DIM)]


def _mine(item: Incident, context: CellContext, _: int) -> Line:
    style = GOOD if worst_loss(context.snapshot) is None else BAD
    if item.held_pps:
        return [(percent(1.0), style)]
    return _dropped(item, item.mine_share, style, context)


def _of_packets(cell: Cell) -> Cell:
    """Leave a cell empty for a full table, which has no packets of its own."""
    return lambda item, context, width: [] if item.kind == FULL_TABLE else cell(item, context, width)


def _rate(item: Incident, context: CellContext, width: int) -> Line:
    """Write packets a second, or what a slow attack holds, across the cells of what packets have."""
    words = holding(item)
    if not words:
        return [(number(min(item.held_pps or item.pps, context.snapshot.tables.totals.pps)), STRONG)]
    forms = words, words.rpartition(" of ")[0], f"{item.holds:,} of {item.holds_of:,}"
    return [(next((form for form in forms if len(form) <= width), number(item.holds)), STRONG)]


def _of_rates(cell: Cell) -> Cell:
    """Leave a cell empty for a slow attack, too, which is as large as the number of its connections."""
    return _of_packets(lambda item, context, width: [] if item.holds else cell(item, context, width))


_PACKETS: dict[str, Cell] = {
    "exhausts": _severity,
    "pps": _rate,
    "sources": lambda item, *_: [(item.sources or "–", DIM)],
}
_RATES: dict[str, Cell] = {
    "bps": lambda item, *_: [(number(item.bps), TEXT)] if item.bps > 0 else [("–", DIM)],
    "mine_share": _mine,
    "other_share": lambda item, context, _: _dropped(item, item.other_share, ELSEWHERE, context),
}
_CELLS: dict[str, Cell] = {
    "letter": lambda item, *_: [(item.letter, TITLE)],
    "target": _target,
    "reaches": _reaches,
    "since": _age,
    "trend": lambda item, context, width: trend_cell(f"attack {item.id}", context, width),
    **{name: _of_packets(cell) for name, cell in _PACKETS.items()},
    **{name: _of_rates(cell) for name, cell in _RATES.items()},
}
_OF_ONE = {name: of_one(cell) for name, cell in _CELLS.items()}
ATTACK_VIEW = View("", columns_of(ATTACK, _OF_ONE | {"title": _title}), ATTACK, empty="")


def calm_words(snapshot: Snapshot) -> str:
    """Say that nothing attacks, or that this isn't known, and at what rate packets arrive."""
    judgement = snapshot.judgement
    known = "Not judged" if judgement.not_judged else "No attack"
    words = f"{known}. {number(snapshot.tables.totals.pps)} pps"
    if judgement.normal_pps is None:
        return f"{words}, {judgement.baseline}" if judgement.baseline else words
    waits = judgement.baseline.partition("; ")[2]  # what isn't learned
    low, high = map(number, judgement.normal_pps)
    return f"{words}, normal range {low}–{high}" + (f"; {waits}" if waits else "")


def setup_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Write what would help in an attack and isn't set up here; what does it goes before what for."""
    names = max((len(want.name) for want in snapshot.wants), default=0)
    lines: list[Line] = []
    for want in snapshot.wants:
        line: Line = [
            ("             " if lines else "  to set up  ", STRONG),
            (f"{want.name:<{names}}  ", TEXT),
        ]
        lacks, mend = [(f"{want.lacks}  ", DIM)], [(want.mend, TITLE)]
        lines.append([*line, *(lacks if width_of([*line, *lacks, *mend]) <= width else []), *mend])
    return lines


NO_BASELINE = "No baseline yet: client impact is estimated"


def packets_hit(share: float, *, guess: bool) -> Line:
    """Write which share of client-like packets would be dropped; "~" without a baseline."""
    style = BAD if share >= HARM_LIMIT else WARN if share > 0 else GOOD
    return [(percent(share) + _cross(style), style), *([(" ~", WARN)] if guess else [])]


def _cross(style: Style) -> str:
    """Mark what is bad, for those who don't see that it is red."""
    return " ✖" if style is BAD else ""


def clients_hit(item: Proposal | Preview) -> Line:
    """Write how many known clients lose something; where none are known, which share of packets."""
    if item.clients is not None and item.clients.known:
        style = _client_style(item.clients)
        return [(item.clients.short + _cross(style), style)]
    return packets_hit(item.collateral_share, guess=item.guess)


def _client_style(clients: ClientHarm) -> Style:
    harm = clients.worst_share
    return BAD if harm >= HARM_LIMIT else WARN if harm or clients.most or clients.others_hit else GOOD


def client_lines(clients: ClientHarm | None) -> list[Line]:
    """Write how many known clients lose something; nothing if no client is known."""
    if clients is None or not (clients.known or clients.unsure):
        return []
    style = _client_style(clients)
    return [labelled("clients hit" if n == 0 else "", [(row, style)]) for n, row in enumerate(clients.parts)]


_ATTACKS = 3  # listed by name in a preview
_MOST_COMMANDS, _MOST_COMMAND_LINES = 200, 402
_INDENT = "   "  # below the letter of the attack
_ENOUGH = 0.95  # of an attack: who stops so much leaves other rules nothing to add


def preview_lines(preview: Preview) -> list[Line]:
    """Write what must be read before installing: the share stopped, and the harm."""
    several = len(preview.attacks) > 1
    whole = f" of the {safe_text(preview.attack or 'attack')}" if several else " of the attack"
    stops: Line = [(percent(preview.attack_share), STRONG), (whole, TEXT)]
    if preview.ends:
        stops += [(f", {preview.ends:,} of the {preview.ends_of:,} connections that it holds", TEXT)]
    elif preview.attack_pps:
        of_all = " packets/s of all attacks" if several else " packets a second"
        stops += [(", ", TEXT), (number(preview.attack_pps), STRONG), (of_all, TEXT)]
    lines = [labelled("stops", stops)]
    if several:
        each = (f"{safe_text(title)} {percent(share)}" for title, share in preview.attacks[:_ATTACKS])
        lines.append(labelled("", [(", ".join(each), DIM)]))
    active, together = dict(preview.already).get(preview.attack, 0.0), dict(preview.together)
    if active:
        words = f"active rules stop {percent(active)} of it already, both {percent(together[preview.attack])}"
        lines.append(labelled("", [(words, WARN)]))
    lines += harm_lines(preview)
    warned = any("baseline" in warning or "guess" in warning for warning in preview.warnings)
    if preview.guess and not warned:
        lines.append(labelled("", [(NO_BASELINE, WARN)]))
    return lines


def harm_lines(item: Proposal | Preview) -> list[Line]:
    """Write how many known clients lose something, and which share of packets that is."""
    by_client = client_lines(item.clients)
    hits: Line = [*packets_hit(item.collateral_share, guess=item.guess), (" of client-like packets", TEXT)]
    if item.collateral_share <= 0:
        none = "No client-like packet matches" if by_client else "none: no client-like packet matches"
        hits = [(none, GOOD), *hits[1:-1]]
    covers = [labelled("", [(item.reach.covers, TEXT)])] if item.reach.covers else []
    return [*by_client, labelled("" if by_client else "clients hit", hits), *covers]


def example_lines(preview: Preview) -> list[Line]:
    """Write who would be hit, and all that matches."""
    lines: list[Line] = []
    for number_of, example in enumerate(preview.examples):
        lines.append(labelled("such as" if number_of == 0 else "", [(safe_text(example), TEXT)]))
    if preview.total_pps or not preview.attack_share:  # what holds connections open sends nothing
        lines.append(labelled("matches now", [(f"{number(preview.total_pps)} pps", DIM)]))
    return lines


def command_lines(commands: Sequence[str], width: int) -> list[Line]:
    """Write commands and scripts, as many as one may read; each of their lines is made safe on its own."""
    lines: list[Line] = [[], [("Commands", DIM)]] if commands else []
    for place, command in enumerate(commands):
        if place == _MOST_COMMANDS or len(lines) >= _MOST_COMMAND_LINES:
            return [*lines, [(f"  … and {len(commands) - place} more", DIM)]]
        for text in command.splitlines():
            lines += [[("  ", TEXT), *row] for row in paragraph(safe_text(text, limit=2000), width - 2)]
    return lines


def relief_lines(rule: Rule, width: int) -> list[Line]:
    """Say what a rule that drops nothing does instead."""
    is_exempt = of(rule.kind).untracks
    does = "its packets stay out of the connection table" if is_exempt else rule.summary
    rows = wrap(safe_text(f"drops nothing: {does}"), width - LABEL)
    return [labelled("effect" if place == 0 else "", [(row, TEXT)]) for place, row in enumerate(rows)]


# -- a set: rules that are installed together, one for each attack


class Part(Struct, frozen=True):
    """One of the rules of a dialog with its preview and plan; `left_out` says why it isn't installed."""

    rule: Rule
    letter: str = ""  # of the attack
    preview: Preview | None = None
    plan: PlanView = PlanView()
    left_out: str = ""


def stopped(parts: Sequence[Part]) -> dict[str, float]:
    """Return the share of each attack, by title, that the best of the rules stops beside active ones."""
    made = [part.preview for part in parts if part.preview is not None and not part.left_out]
    found = {one.attacks[0][0]: 0.0 for one in made if one.attacks}  # in the rules' order
    for one in made:
        for title, share in (dict(one.attacks) | dict(one.together)).items():
            found[title] = max(found.get(title, 0.0), share)
    return found


def adds_nothing(preview: Preview, without: Mapping[str, float]) -> bool:
    """Check whether without a rule enough is stopped of each attack that it would stop."""
    together = dict(preview.together)
    aimed = [(title, together.get(title, share)) for title, share in preview.attacks if share > 0]
    return bool(aimed) and all(without.get(title, 0.0) >= min(share, _ENOUGH) for title, share in aimed)


def total_harm(preview: Preview | None) -> float:
    """Return the share of normal traffic, or of known clients, that is dropped, whichever is more, 0 to 1."""
    if preview is None:
        return 0.0
    return max(preview.collateral_share, preview.clients.worst_share if preview.clients else 0.0)


def sum_lines(parts: Sequence[Part], whole: Preview | None) -> list[Line]:
    """Write what a set stops, which is at least what the best of its rules stops, and its harm."""
    lines = [
        labelled("stops" if place == 0 else "", [(percent(share), STRONG), (f" of {safe_text(title)}", TEXT)])
        for place, (title, share) in enumerate(stopped(parts).items())
    ]
    return [*lines, *(harm_lines(whole) if whole is not None else [])]


def part_lines(part: Part, width: int, told: set[str]) -> list[Line]:
    """Write one rule of a set; warnings that were `told` with an earlier one aren't repeated."""
    lines = paragraph(f"{part.letter}  {safe_text(part.rule.summary)}", width, STRONG)
    warnings = [f"left out: {safe_text(part.left_out)}"] if part.left_out else []
    if part.preview is not None and not part.left_out:
        line: Line = [(f"{_INDENT}{number(part.preview.total_pps)} pps match now, ", DIM)]
        lines.append([*line, ("clients hit ", DIM), *clients_hit(part.preview)])
    for warning in () if part.left_out else part.plan.warnings:
        if warning not in told:
            warnings.append(f"! {safe_text(warning)}")
            told.add(warning)
    for warning in warnings:
        lines += [[(_INDENT, TEXT), *row] for row in paragraph(warning, width - len(_INDENT), WARN)]
    return lines
