"""A report as one document: its first page, attacks, rules, and what happened in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fwtop.dissect.client import Layer
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import FULL_TABLE, Event
from fwtop.render.harm import hit_words
from fwtop.render.numbers import duration_words, percent, plural, si, span_words
from fwtop.report.attacks import AttackDetail, AttackSpan
from fwtop.report.chart import attack_chart, traffic_chart
from fwtop.report.document import Block, Code, Document, Drawing, Items, Key, Meter, Section, Table, Text, tag
from fwtop.report.effects import Change, RuleEffect, UserFigure
from fwtop.report.summary import Digest
from fwtop.report.sums import Row
from fwtop.report.traffic import (
    costs_section,
    machine_section,
    traffic_section,
    trends_section,
    users_section,
)
from fwtop.report.wording import about, clock, day_and_time
from fwtop.rules.kinds import command_line

_NAMES = {
    "rule_proposed": "proposed",
    "rule_undone": "rule removed",
    "records_lost": "samples lost",
    "rule_harms": "HARM",
}


def document(digest: Digest) -> Document:
    """Put all sections in order."""
    info = digest.info
    where = ", ".join(info.interfaces) + (f" in {info.netns}" if info.netns else "")
    when = f"{day_and_time(info.started)}, {duration_words(info.seconds)}"
    return Document(
        title=digest.headline,
        host=info.host,
        where=" · ".join(part for part in (info.host, where, when) if part),
        first=first_page(digest),
        sections=(
            attacks_section(digest),
            rules_section(digest.effects),
            users_section(digest),
            traffic_section(digest),
            machine_section(digest),
            costs_section(digest.costs, {effect.rule.kind for effect in digest.effects}),
            trends_section(digest.trends),
            _log(digest),
        ),
        notes=digest.notes,
        origin=_origin(digest),
    )


def _log(digest: Digest) -> Section:
    blocks: list[Block] = []
    if digest.events_left_out:
        blocks.append(Text(f"{plural(digest.events_left_out, 'event')} left out.", "hint"))
    if digest.events:
        blocks.append(Table((), [_row(event) for event in digest.events], "log"))
    return Section("What happened, in order", blocks)


def _row(event: Event) -> tuple[str, Text, Text]:
    """Say in two or three words what happened, and in which rule's life."""
    name = _NAMES.get(event.kind, event.kind.replace("_", " "))
    name = name.replace("rule ", f"rule {safe_text(event.subject, limit=8)} ")
    look = "what name-attack" if event.kind.startswith("attack") else "what"
    return clock(event.at), Text(name, look, strong=True), Text(event.text)


def _origin(digest: Digest) -> str:
    info = digest.info
    sampled = (
        f"Contents were sampled, at most 1 packet in {digest.sums.one_in_max:,.0f}; totals are exact, shares "
        "and what became of attacks' packets (about) are estimates."
    )
    return (
        f"Session {info.id}, recorded by fwtop {info.version}. Times are UTC. "
        + (sampled if digest.sums.one_in_max > 1 else "")
        + (f" Countries and networks: {info.geoip}" if info.geoip else "")
    )


NO_RULE = Text("No rule was installed.", "none")
_MOST_DONE = 6
_AS_USUAL = 0.995
_Figure = tuple[str, str, str]  # name, value, a note


def first_page(digest: Digest) -> tuple[Block, ...]:
    """Return the first page."""
    bad = " bad" if digest.protection.attacked_at_end else ""
    done = _done(digest.effects)
    todo = (
        Section("What was done", [Items(done) if done else NO_RULE], look=""),
        Section("Next steps", [Items(digest.next_steps, ordered=True)], look=""),
    )
    return (
        Text(" ".join(digest.summary), "lead"),
        Text(f"At the end: {digest.state[:1].lower()}{digest.state[1:]}", f"state{bad}", strong=True),
        Table(("figure", "", ""), _figures(digest), "figures"),
        Section("Timeline", [_timeline(digest)], look=""),
        Section("", todo, look="todo"),
    )


def _figures(digest: Digest) -> list[_Figure]:
    sums, protection = digest.sums, digest.protection
    dropped = sums.dropped / sums.packets if sums.packets else 0.0
    figures = [
        ("Peak", si(sums.peak_pps, "pps"), f"{si(sums.peak_bps, 'bit/s')}, at {clock(sums.peak_at)}"),
        ("Arrived", si(round(sums.packets)), f"packets, {si(sums.bytes, 'B')}"),
        ("Dropped", percent(dropped, None), f"{si(round(sums.dropped))} packets{_droppers(digest)}"),
    ]
    if digest.spans:
        figures.append(_unprotected(digest))
    if protection.stopped_after is not None:
        after = duration_words(protection.stopped_after)
        figures.append(("Stopped for good", after, "of attack, without calm between"))
    figures += [_user_figure(item, attacked=bool(digest.spans)) for item in digest.user_figures]
    matched = sum(effect.packets for effect in digest.effects)
    told = f"matched {si(matched)} packets" if digest.effects else "none installed"
    figures.append(("Rules", str(len(digest.effects)), told))
    if sums.conntrack_peak is not None and sums.conntrack_max:
        fill = percent(sums.conntrack_peak / sums.conntrack_max, None)
        figures.append(("Connection table, fullest", fill, f"of {sums.conntrack_max:,} entries"))
    return figures


def _droppers(digest: Digest) -> str:
    sums = digest.sums
    if not sums.dropped:
        return ""
    mine, other, kernel = (si(round(packets)) for packets in (sums.mine, sums.other, sums.kernel))
    return f": fwtop {mine}, other firewalls {other}, kernel {kernel}"


def _unprotected(digest: Digest) -> _Figure:
    protection = digest.protection
    whole = duration_words(protection.attacked)
    words = f"of {whole} under attack"
    if protection.partly >= 1:
        words += f"; partly stopped for {duration_words(protection.partly)}"
    if protection.kernel_alone >= 1:
        words += f"; dropped by the kernel for {duration_words(protection.kernel_alone)}"
    if protection.protected >= 1:
        words += f"; stopped for {duration_words(protection.protected)}"
    return ("Unprotected", duration_words(protection.unprotected), words)


def _user_figure(item: UserFigure, *, attacked: bool) -> _Figure:
    name = f"Users' {item.name}"
    if item.normal is None:
        now = item.attacked if attacked else item.at_end
        return (name, f"{si(now or 0.0)}/s", "what is usual isn't known: no calm time in the record")
    usual = f"usual: {si(item.normal)}/s"
    share = item.of_normal(item.attacked)
    if share is None:
        return (name, f"{si(item.normal)}/s", "all the time")
    worst = item.of_normal(item.worst)
    lowest = (
        f"; at worst {percent(worst, None)}, at {clock(item.worst_at)}"
        if worst is not None and item.worst_at is not None and worst < _AS_USUAL
        else ""
    )
    return (name, percent(share, None), f"of normal under attack ({usual}){lowest}")


def _timeline(digest: Digest) -> Drawing:
    chart = traffic_chart(digest.ticks, digest.spans, digest.effects, digest.unstored)
    if not chart:
        return Drawing(tag("p", "Too short for a timeline.", class_="none"))
    keys = [
        ("arrived", "arrived"),
        ("delivered", "accepted"),
        ("dropped", "dropped by kernel"),
        ("other", "by other firewalls"),
        ("mine", "by fwtop's rules"),
    ]
    if digest.spans:
        keys.append(("attack", "attack"))
    if digest.effects:
        keys.append(("rule", "rule applied; hollow where it ended"))
    if digest.unstored:
        keys.append(("unstored", "not stored"))
    return Drawing(chart, keys=keys)


def _done(effects: Sequence[RuleEffect]) -> list[str]:
    lines = [
        f"{clock(effect.applied) if effect.applied is not None else 'Before the record'}: "
        f"rule {effect.rule.id}, {effect.rule.summary}; {effect.done}."
        for effect in effects[:_MOST_DONE]
    ]
    left = len(effects) - _MOST_DONE
    return [*lines, f"And {plural(left, 'rule')} more."] if left > 0 else lines


_TITLES = {
    "address": "Senders",
    "asn": "Their networks",
    "country": "Their countries",
    "prefix": "Their prefixes",
    "port": "Ports",
    "target": "Targets",
    "signature": "What its packets have in common",
    "payload": "Payloads",
}
_WIDE = ("signature", "payload")
_MONO = ("address", "prefix", "target", "payload")
_MOST_ATTACKS = 20
_MOST_FIELDS = 24  # of each layer of a decoded packet
_MOST_VALUE = 80
_HEX_BYTES = 96


def attacks_section(digest: Digest) -> Section:
    """Return the section."""
    spans = digest.spans[:_MOST_ATTACKS]
    blocks: list[Block] = []
    if chart := attack_chart(digest.ticks, spans):
        words = "Packets a second of each attack, estimated from samples; all to one scale."
        blocks.append(Drawing(chart, words))
    blocks += [Section(span.title, list(_attack(span)), "item attack", level=3) for span in spans]
    if not spans:
        blocks.append(Text("Nothing in the traffic looked like an attack.", "none"))
    return Section("What it was", blocks)


def _attack(span: AttackSpan) -> Iterator[Block]:
    yield Text(" · ".join(_words(span)), "meta")
    if span.evidence:
        yield Items(span.evidence)
    tables = span.detail.tables
    if tables:
        yield Text(_tables_note(span), "meta")
        titles = _TITLES | ({"address": "Source addresses"} if span.uncertain else {})
        shown = [_table(name, title, tables[name]) for name, title in titles.items() if tables.get(name)]
        yield Section("", shown, "attack-tables")
    yield from _packet(span.detail)


def _words(span: AttackSpan) -> Iterator[str]:
    """Say when an attack was on, how big it was, and what became of it."""
    end = clock(span.ended) if span.ended is not None else "the end of the record"
    yield f"{clock(span.began)} to {end} ({span_words(span.seconds)})"
    if span.kind != FULL_TABLE:
        sent = f"{si(span.peak_pps, 'pps')}, {percent(span.share, None)} of all packets"
        yield span.holding or f"at its height {sent}"
    if span.target:
        yield f"against {span.target}"
    if span.stopped is not None and span.packets and not span.holding and span.kind != FULL_TABLE:
        yield (
            f"{about(span.stopped)} of its {si(span.packets)} packets dropped by firewalls, "
            f"{percent(span.reached or 0.0, None)} reached services"
        )
    yield f"{percent(span.confidence, None)} sure"
    if span.spoofed:
        yield "sources look forged"
    if span.uncertain:
        yield "whether its sources are real can't be told"


def _tables_note(span: AttackSpan) -> str:
    forged = "Its sources look forged, so that no senders are listed. " if span.spoofed else ""
    if span.uncertain:
        forged = "Its packets may bear the addresses of others: nobody here is known to have sent them. "
    return f"{forged}Shares of its own packets, estimated from samples ({plural(span.detail.looks, 'look')})."


def _table(name: str, title: str, rows: tuple[Row, ...]) -> Table:
    largest = max(row.share for row in rows) or 1.0
    cells = [
        (Key(row.key, row.about(48), row.share / largest, name in _MONO), percent(row.share, None))
        for row in rows
    ]
    return Table((title, "share"), cells, "wide" if name in _WIDE else "")


def _packet(detail: AttackDetail) -> Iterator[Section]:
    packet = detail.shown
    if packet is None:
        return
    words = f"One of its packets, at {clock(packet.at)}, {packet.length:,} bytes, as captured"
    decoded, shown = detail.dissection, packet.data[:_HEX_BYTES]
    lines = [_layer(layer) for layer in decoded.layers]
    lines.append(" ".join(shown[at : at + 4].hex() for at in range(0, len(shown), 4)))
    problem = [Text(decoded.problem, "hint")] if decoded.problem else []
    yield Section(words, [*problem, Code(lines)], "packet", level=4)


def _layer(layer: Layer) -> str:
    fields = [(name, value) for name, value in layer.fields if value not in ("", "[]")]
    told = (f"{name} {safe_text(value, limit=_MOST_VALUE)}" for name, value in fields[:_MOST_FIELDS])
    return " · ".join((layer.name, *told))


_MOST_RULES = 40
_MOST_COMMAND = 2_000


def rules_section(effects: Sequence[RuleEffect]) -> Section:
    """Return the section."""
    shown = [_rule(effect) for effect in effects[:_MOST_RULES]]
    return Section("What was done, and what it did", shown or [NO_RULE])


def _rule(effect: RuleEffect) -> Section:
    rule = effect.rule
    meta = [part for part in (_life(effect), f"by {rule.created_by}" if rule.created_by else "") if part]
    matched = f"matched {si(effect.packets)} packets, {si(effect.bytes, 'B')}"
    meta.append(effect.done if rule.counts_only else matched)
    measured = [Section("", _prediction(effect), ""), Section("", _changes(effect.changes), "")]
    blocks: list[Block] = [Text(" · ".join(meta), "meta"), Section("", measured, "effect")]
    if line := command_line(rule, max_sources=None):
        blocks.append(Code([line[:_MOST_COMMAND]]))
    return Section(rule.summary, blocks, "item", level=3, rule=rule.id)


def _life(effect: RuleEffect) -> str:
    applied = clock(effect.applied) if effect.applied is not None else "before the record"
    if effect.ended is None:
        return f"{applied} to the end of the record"
    return f"{applied} to {clock(effect.ended)}, then {effect.ending}"


def _prediction(effect: RuleEffect) -> list[Block]:
    predicted, actual = effect.rule.predicted_pps, effect.actual_pps
    largest = max(predicted or 0.0, actual, 1e-9)
    meters = [("actual", Meter(actual / largest, filled=True), si(actual, "pps"))]
    if predicted is not None:
        meters.insert(0, ("predicted", Meter(predicted / largest, filled=False), si(predicted, "pps")))
    harm = [Text(words, "hint") for words in _harm(effect)]
    return [
        Section(
            "Packets counted a second" if effect.rule.counts_only else "Packets stopped a second",
            [Table((), meters, "pair")],
            "",
            level=4,
        ),
        Section("Harm", harm, "", level=4),
    ]


def _harm(effect: RuleEffect) -> list[str]:
    """Say what was predicted of others' packets, and what users did meanwhile."""
    harm = [f"HARM: {effect.harm}."] if effect.harm else []
    rule = effect.rule
    if (share := rule.predicted_collateral_share) is not None:
        harm.append(f"Predicted: {hit_words(share, rule.predicted_clients, guess=rule.predicted_guess)}.")
    if effect.users:
        told = " and ".join(f"{percent(share, None)} of the usual {name}" for name, share in effect.users)
        harm.append(f"Measured: while it was active users made {told}.")
    return harm


def _changes(changes: Sequence[Change]) -> list[Block]:
    rows = [
        (change.name, _figure(change.before, change.unit), _figure(change.after, change.unit))
        for change in changes
    ]
    return [Table(("The machine", "before", "after"), rows)] if rows else []


def _figure(value: float, unit: str) -> str:
    return percent(value, None) if unit == "share" else si(value, unit)
