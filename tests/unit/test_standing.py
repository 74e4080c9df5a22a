"""Who a source is: the attackers, the clients, and those of whom nothing is known."""

from __future__ import annotations

import numpy as np
from analysis_factory import STARTED, make_batch, make_frames, make_window
from test_analysis_propose import VISITORS, learned
from test_packet_signatures import SYNS

from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U8, U64, OriginColumns, Window
from fwtop.model.traffic.snapshot import Source, Tables
from fwtop.stats.engine import Engine


class Halves:
    """Addresses below 128.0.0.0 are AS1 in NL, the others AS2 in DE."""

    stale = ""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        low = lo >> np.uint64(31) == 0
        letters = [int.from_bytes(text, "big") for text in (b"NL", b"DE")]
        return OriginColumns(np.where(low, *letters).astype(np.uint16), np.where(low, 1, 2).astype(np.uint32))

    def as_name(self, asn: int) -> str | None:
        return None


def observed(items: list[dict[str, object]], advisor: Advisor, *, live: bool = False) -> Tables:
    batch = make_batch(make_frames(items, 5.0))
    engine = Engine(Halves(), window_seconds=None, live=False)
    engine.feed(batch, None, 0.0)
    window: Window = make_window(batch, 5.0, live=live)
    advisor.judge(window, engine.tables())
    return engine.tables()


def who(entries: tuple[Source, ...]) -> dict[str, str]:
    return {entry.key: entry.who for entry in entries}


def test_in_a_spoofed_flood_visitors_are_clients_and_all_others_attack() -> None:
    advisor = Advisor()
    tables = observed([VISITORS, SYNS], advisor)
    marked = who(advisor.standing.mark(tables.sources).address)
    heavy = {entry.key for entry in tables.sources.address if entry.share.packets > 5}
    assert heavy
    assert {marked[key] for key in heavy} == {"client"}
    assert {marked[key] for key in marked.keys() - heavy} <= {"attack", "client"}
    assert "attack" in marked.values()


def test_bots_that_flood_from_their_own_addresses_attack() -> None:
    bots = {"src": "20", "dport": 27015, "payload": "random_any", "count": 6000}
    advisor = learned()
    tables = observed([VISITORS, bots], advisor, live=True)
    marked = advisor.standing.mark(tables.sources)
    assert [entry.who for entry in marked.address[:3]] == ["attack"] * 3
    assert list(who(marked.address).values()).count("attack") == 20
    assert marked.prefix[0].who == "attack"
    assert "client" in who(marked.address).values()


def test_networks_and_countries_are_what_most_of_their_packets_are() -> None:
    one = {"src": "20.1.2.3", "dport": 27015, "payload": "random_any", "count": 6000}
    advisor = Advisor(lookup=Halves())
    sources = observed([one], advisor).sources
    marked = advisor.standing.mark(sources)
    assert who(marked.asn) == {"AS1": "attack"}
    assert who(marked.country) == {"NL": "attack"}


def test_what_the_host_knows_of_a_peer_wins_and_strangers_stay_unknown() -> None:
    advisor = Advisor()
    tables = observed([VISITORS, SYNS], advisor)
    entry = tables.sources.address[0]
    you = type(entry)(entry.key, entry.share, 0.0, prefix=entry.prefix, who="you")
    stranger = type(entry)("192.0.2.99", entry.share, 0.0, prefix=Prefix.parse("192.0.2.99"))
    sources = type(tables.sources)(address=(you, stranger))
    assert [one.who for one in advisor.standing.mark(sources).address] == ["you", ""]


def test_clients_are_listed_only_while_an_attack_is_under_way() -> None:
    calm, attacked = Advisor(), Advisor()
    observed([VISITORS], calm)
    assert calm.standing.clients(20) == ()
    tables = observed([VISITORS, SYNS], attacked)
    clients = attacked.standing.clients(20)
    assert len(clients) == 20
    first = max(tables.sources.address, key=lambda entry: entry.share.packets)
    assert clients[0] == first.prefix
    assert Advisor().standing.mark(tables.sources) == tables.sources


def test_a_live_flood_lists_its_clients_tick_by_tick() -> None:
    batch = make_batch(make_frames([{**VISITORS, "count": 200}, {**SYNS, "count": 9000}], 5.0))
    engine, advisor = Engine(Halves(), window_seconds=5.0, live=True, top=5), Advisor(lookup=Halves())
    first = int(batch.time_ns.min())
    listed: list[dict[str, str]] = []
    for tick in range(10):
        place = (batch.time_ns - first) // 500_000_000 == tick
        part = batch.select(np.flatnonzero(place))
        counters = Counters(0.5, len(part), int(part.length.sum()))
        engine.feed(part, counters, STARTED + (tick + 1) * 0.5)
        tables = engine.tables(advisor.standing.clients(20))
        advisor.judge(engine.window(), tables)
        listed.append(who(advisor.standing.mark(tables.sources).address))
    assert len(listed[-1]) > 15, "five of the top and the clients"
    clients = [key for key, one in listed[-1].items() if one == "client"]
    assert len(clients) >= 15
