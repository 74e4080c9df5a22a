"""What is learned of which traffic: tables of what was seen, and of the limit that is learned of it."""

from __future__ import annotations

import re
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.connections import ConnectionMemory
from fwtop.analysis.habits import COLUMNS, Reading
from fwtop.analysis.learning import ATTACK, BACK, NORMAL, Learner
from fwtop.analysis.memory import Baseline
from fwtop.analysis.window.traffic import mix
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import PacketBatch

# seconds  class, packets/s ("a|b": every other second)  [attack]  → limit that is learned, or least and most
LONG = (
    "what lasts is learned in steps of a factor of two, each after 20 minutes",
    "a slow rise gets no faster than one by steps",
    "bursts don't lift the limit over the ceiling",
    "an attack on other traffic doesn't end the quarantine",
)  # thousands of seconds each
TABLES = {
    "a minute of iperf3 on 460 real packets/s teaches nothing, in an old baseline": """
        400  udp 460                → 460
         60  udp 30000              → 460
        300  udp 460                → 460
    """,
    "iperf3 in a short baseline counts as little as it lasts": """
         30  udp 460                → 460
         20  udp 30000              → 460
         30  udp 460                → 460
    """,
    "what a baseline begins with is replaced once most of it is otherwise": """
          8  udp 30000              → 30000
         20  udp 460                → 460
        400  udp 460                → 460
    """,
    "growth up to twice the usual is learned as it comes": """
        400  udp 500                → 500
        900  udp 900                → 900 1000
    """,
    "what lasts is learned in steps of a factor of two, each after 20 minutes": """
        400  udp 500                → 500
       1190  udp 3000               → 500
         20  udp 3000               → 1000
       1180  udp 3000               → 1000
         20  udp 3000               → 2000
       1180  udp 3000               → 2000
         20  udp 3000               → 3000
        600  udp 3000               → 3000
    """,
    "what pauses waits anew; pulses don't": """
        400  udp 500                → 500
       1100  udp 3000               → 500
         60  udp 500                → 500
       1100  udp 3000               → 500
         10  udp 500                → 500
        200  udp 3000               → 1000
    """,
    "a slow rise gets no faster than one by steps": """
        400  udp 500                → 500
        600  udp 990                → 950 1000
        580  udp 1900               → 950 1000
    """,
    "bursts don't lift the limit over the ceiling": """
        400  udp 500                → 500
        900  udp 1|990              → 900 1000
    """,
    "what an attack is named on is dropped, and for the rest time stands still": """
        400  udp 500                → 500
       1100  udp 3000               → 500
         20  udp 3000 attack        → 500
       1100  udp 3000               → 500
    """,
    "an attack on other traffic doesn't end the quarantine": """
        400  udp 500 syn 20         → 500
       1100  udp 3000 syn 20        → 500
        100  udp 3000 syn 900 syn! attack → 500
        110  udp 3000 syn 20        → 1000
    """,
    "an attack teaches nothing": """
        400  udp 500                → 500
       1300  udp 30000 attack       → 500
         60  udp 500                → 500
    """,
    "what is too slow for a flood is learned at once": """
        400  udp 1                  → 1
        300  udp 70                 → 40 120
    """,
    "the operator's word: this was an attack": """
        400  udp 500                → 500
         60  udp 900                → 500 1000
          1  udp 900 said:attack    → 500
        400  udp 900                → 500
        100  udp 500                → 500
    """,
    "the operator's word: this is normal, and back": """
        400  udp 500                → 500
         60  udp 3000               → 500
          1  udp 3000 said:normal   → 3000
        100  udp 3000               → 3000
          1  udp 3000 said:back     → 500
         60  udp 3000               → 500
    """,
    "the operator's word on a named attack": """
        400  udp 500                → 500
         60  udp 30000 attack       → 500
          1  udp 30000 attack said:normal → 30000
         60  udp 30000              → 30000
    """,
}  # fmt: skip
FIELDS = {"udp": (17, 0, 9), "syn": (6, 2, 443), "ack": (6, 16, 443), "ssh": (6, 2, 22)}
ROWS = 10  # a class and second


class Watched:
    """Windows of a second each, with or without an attack on the class that is named first."""

    def __init__(self, baseline: Baseline | None = None) -> None:
        self.learner = Learner(baseline or Baseline(1_000), AdviseConfig())
        self.now = 1_000

    def second(
        self, rates: dict[str, float], attacked: str = "", said: str = "", *, source: int = 1, left: int = 0,
        proven: bool = False, seconds: int = 1,
    ) -> None:  # fmt: skip
        """Pass a second, or a longer window; TCP is of connections from `source`; `left` attacked before.

        `proven`: what is no attack makes its source a client.
        """
        packets = PacketBatch.zeros(ROWS * len(rates), 0)
        packets.family[:] = 4
        hit = np.zeros(len(packets), np.bool_)
        for number, (name, pps) in enumerate(rates.items()):
            rows = slice(number, None, len(rates))  # in the order of time
            hit[rows] = name == attacked
            packets.protocol[rows], packets.tcp_flags[rows], packets.dport[rows] = FIELDS[name]
            packets.sport[rows] = np.arange(ROWS) + 1024
            packets.weight[rows] = pps / ROWS
            packets.src_lo[rows] = source
            packets.time_ns[rows] = (self.now + seconds * np.arange(ROWS) / ROWS) * 1e9
        finding = SimpleNamespace(rows=np.flatnonzero(hit), held=None)
        context = SimpleNamespace(
            traffic=Traffic(packets, float(self.now), float(seconds)),
            findings=[finding] if attacked else [],
            tcp=SimpleNamespace(real=packets.protocol == 6),
            services=Reading(np.zeros(0, np.uint32), np.zeros((0, len(COLUMNS)))),
            unclaimed=~hit,
            proven=np.full(len(packets), proven),
            memory=SimpleNamespace(connections=ConnectionMemory()),
            attackers=[mix(np.zeros(1, np.uint64), np.array([left], np.uint64))] if left else [],
        )
        named = [(SimpleNamespace(id=1, since=self.now - 60.0), finding)] if attacked else []
        window = SimpleNamespace(live=True, services=(), started=float(self.now), seconds=float(seconds))
        asking = self._ask(said) if said else None
        self.learner.obey(cast(Any, context), cast(Any, named))
        if asking is not None:
            asking.join()
        self.learner.take(cast(Any, context), cast(Any, window), quiet=not attacked)
        self.now += seconds

    def _ask(self, said: str) -> Thread:
        self.answer: str | FwtopError = ""

        def ask() -> None:
            try:
                self.answer = self.learner.hear(said)
            except FwtopError as error:
                self.answer = error

        asking = Thread(target=ask)
        asking.start()
        while self.learner._words.empty():
            pass
        return asking


class Traffic(SimpleNamespace):
    def __init__(self, packets: PacketBatch, started: float, seconds: float) -> None:
        sources = mix(packets.src_hi, packets.src_lo)
        super().__init__(
            packets=packets, weight=packets.weight, started=started, seconds=seconds, source_key=sources
        )

    def __len__(self) -> int:
        return len(self.packets)


def play(table: str, watched: Watched) -> None:
    for line in table.strip().splitlines():
        seen, limit = line.split("→")
        traffic = re.findall(r"(udp|syn|ack) ([\d|]+)", seen)
        attacked = ("syn" if "syn!" in seen else "udp") if "attack" in re.sub(r"said:\w+", "", seen) else ""
        said = next(iter(re.findall(r"said:(\w+)", seen)), "")
        for second in range(int(seen.split()[0])):
            rates = {name: float(pps.split("|")[second % len(pps.split("|"))]) for name, pps in traffic}
            watched.second(rates, attacked, said)
        learned = watched.learner.baseline.rate("udp") or 0.0
        least, most = (limit.split() * 2)[:2]
        assert float(least) * 0.99 <= learned <= float(most) * 1.01, (line, learned, watched.learner.told)


@pytest.mark.one_each(*(name for name in TABLES if name not in LONG))
@pytest.mark.parametrize("name", TABLES)
def test_the_limit_that_is_learned(name: str) -> None:
    play(TABLES[name], Watched())


def share_of(watched: Watched, port: int) -> float:
    rows = watched.learner.baseline.rows
    return float(rows.weight[rows.dport == port].sum() / rows.weight.sum())


def test_bots_are_not_taken_for_clients() -> None:
    """Neither while the baseline is short nor later: on its packets harm is measured, and who is a client."""
    watched = Watched()
    for seconds, rates in (
        (20, {"udp": 400, "ack": 400}),
        (12, {"udp": 400, "ack": 20_000}),
        (20, {"udp": 400, "ack": 400}),
    ):
        for _ in range(seconds):
            watched.second(cast(Any, rates))
    assert share_of(watched, 443) == pytest.approx(0.5, abs=0.1)
    for _ in range(300):
        watched.second({"udp": 400, "ack": 400})
    for _ in range(60):
        watched.second({"udp": 400, "ack": 20_000})
    assert share_of(watched, 443) == pytest.approx(0.5, abs=0.12)
    assert "not learned: tcp.lone 20,000/s for 1 of 20 min" in watched.learner.sentence("baseline")


def sources_of(watched: Watched) -> set[int]:
    return set(watched.learner.baseline.rows.src_lo.tolist())


def test_what_a_source_that_attacked_still_sends_is_nobody_s_habit() -> None:
    watched = Watched()
    for _ in range(60):
        watched.second({"udp": 400})
    for _ in range(60):
        watched.second({"udp": 400, "ack": 5}, source=7, left=7)
    assert sources_of(watched) == {1}
    for _ in range(60):
        watched.second({"udp": 400, "ack": 5}, source=7)
    assert sources_of(watched) == {1, 7}


def test_who_became_a_client_before_his_attack_was_named_is_none_afterwards() -> None:
    watched = Watched()
    for _ in range(60):
        watched.second({"udp": 400}, proven=True)
    for _ in range(5):  # the onset
        watched.second({"udp": 400, "ack": 5}, source=7, proven=True)
    assert set(watched.learner.baseline.clients.lo.tolist()) == {1, 7}
    watched.second({"udp": 9_000, "ack": 5}, "udp", source=7, left=7, proven=True)
    for _ in range(60):
        watched.second({"udp": 400}, proven=True)
    assert set(watched.learner.baseline.clients.lo.tolist()) == {1}


def long_known(watched: Watched) -> set[tuple[int, int]]:
    """Return source and port of each."""
    clients = watched.learner.baseline.clients
    rows = clients.select(clients.long_known)
    return set(zip(rows.lo.tolist(), (rows.service & 0xFFFF).tolist(), strict=True))


@pytest.mark.parametrize(
    ("swollen", "rates", "known"),
    [
        pytest.param("udp", {"udp": 3_000, "ack": 20}, {443}, id="a class that the service isn't of"),
        pytest.param("ssh", {"ssh": 900, "syn": 20, "ack": 20}, {443}, id="another service of the class"),
        pytest.param("syn", {"syn": 900, "ssh": 20, "ack": 20}, {22}, id="bots, of whatever else they send"),
        pytest.param("syn", {"syn": 900, "ssh": 700}, set(), id="bots beside a decoy"),
    ],
)
@pytest.mark.parametrize("pause", [0, 2], ids=["steady", "in pulses"])
def test_only_who_uses_what_is_far_above_normal_becomes_no_client(
    swollen: str, rates: dict[str, float], known: set[int], pause: int
) -> None:
    usual = {"udp": 400.0, "syn": 20.0, "ssh": 20.0, "ack": 20.0}
    watched = Watched()
    for _ in range(400):
        watched.second(usual)
    for second in range(120):
        now = usual | {swollen: 20.0} if pause and second % pause else usual | rates
        watched.second({name: pps for name, pps in now.items() if name in rates}, source=7, proven=second > 9)
    assert {port for source, port in long_known(watched) if source == 7} == known
    for _ in range(60):  # nothing is held once it is over
        watched.second(usual, source=7, proven=True)
    assert {(7, 443), (7, 22)} <= long_known(watched)


def test_connections_that_came_with_an_attack_are_nobody_s_habit() -> None:
    watched = Watched()
    for _ in range(60):
        watched.second({"udp": 400, "ack": 400})
    for _ in range(60):
        watched.second({"udp": 9_000, "ack": 400}, "udp", source=7)
    assert sources_of(watched) == {1}


def test_what_was_learned_of_an_attack_is_forgotten_with_its_packets_and_can_be_taken_back() -> None:
    watched = Watched()
    for _ in range(400):
        watched.second({"udp": 400})
    for _ in range(60):
        watched.second({"udp": 400, "ack": 140})  # too few to be far above normal
    assert share_of(watched, 443) > 0.1
    watched.second({"udp": 400, "ack": 140}, said=ATTACK)
    assert share_of(watched, 443) == 0
    assert "tcp.lone" in str(watched.answer)
    for _ in range(30):
        watched.second({"udp": 400, "ack": 140})
    assert share_of(watched, 443) == 0
    watched.second({"udp": 400, "ack": 140}, said=BACK)
    assert share_of(watched, 443) > 0.1
    watched.second({"udp": 400, "ack": 140}, said=BACK)
    assert "nothing to take back" in str(watched.answer)


def test_an_attack_that_is_said_to_be_normal_fills_as_much_of_the_reservoir_as_of_the_traffic() -> None:
    watched = Watched()
    for _ in range(400):
        watched.second({"udp": 400})
    watched.second({"ack": 1_200, "udp": 400}, "ack", said=NORMAL)
    assert share_of(watched, 443) == pytest.approx(0.75, abs=0.02)
    assert watched.learner.baseline.rate("tcp.lone") == pytest.approx(1_200)
    watched.second({"ack": 1_200, "udp": 400}, said=NORMAL)
    assert "is being learned already" in str(watched.answer)


def test_a_stored_baseline_keeps_its_ceilings_and_a_short_one_can_be_replaced() -> None:
    watched = Watched()
    play("400  udp 500 → 500", watched)
    again = Watched(Baseline.from_bytes(watched.learner.baseline.to_bytes()))
    play("1000  udp 3000 → 500", again)
    short = Watched()
    play("20  udp 9000 → 9000", short)
    next_one = Watched(Baseline.from_bytes(short.learner.baseline.to_bytes()))
    play("40  udp 500 → 500", next_one)


def test_a_busy_machine_s_long_window_is_learned_after_what_came_before_it() -> None:
    watched = Watched()
    for _ in range(400):
        watched.second({"udp": 500})
    for _ in range(2):
        watched.second({"udp": 3_000})
    watched.second({"udp": 15_000}, seconds=5)
    waiting = watched.learner._quarantine.waiting["udp"]
    assert waiting.last - waiting.since == pytest.approx(waiting.seconds) == pytest.approx(4.0)


def test_the_memory_of_learning_is_bounded() -> None:
    watched = Watched()
    for second in range(4_000):
        watched.second({"udp": 400 if second < 400 else 9_000, "syn": 10})
    learner = watched.learner
    assert len(learner._points) == 30
    assert len(learner._quarantine.waiting) <= 1
    assert not len(learner._young.rates)
    assert len(learner._pending) < 10
    assert not any(len(point.was.rows) or len(point.was.clients) for point in learner._points)
