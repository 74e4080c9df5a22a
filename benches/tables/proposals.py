"""The share of an attack that proposals promise to stop, against what their rules stop (A8).

A proposal is installed from the stored observation, by `fwtop apply N`, while no flood runs. Then the flood
comes again, so that it is counted from its first packet to its last: by the rule, and by whoever stands
before the rule. Compiled rules stand before reassembly and count frames, as the interface does. Those of
netfilter stand behind it (nf_defrag, at priority -400) and count datagrams, as a counter at -399 does.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from benches.corpus.profiles import methods
from fwtop.bench.frame import Document, Options, Result, number, progress
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import run_fwtop
from fwtop.lab.namespaces import run as run_tool
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text

_SECONDS, _QUICK_SECONDS = 3.0, 2.0
_QUICK = (
    "few_sources", "dns_amplification", "dns_amplification_ipv6", "cldap_amplification",
    "chargen_amplification", "middlebox_amplification", "dns_query_flood", "syn_flood",
)  # fmt: skip
_NOT_STOPPED = "port_scan"  # nothing is proposed against it
_MEDIAN_POINTS, _WORST_POINTS = 3.0, 10.0


def run(options: Options) -> Document:
    """Try the proposals of all attacks of the lab (those named; with `quick`, a few)."""
    names = chosen(options.captures, quick=options.quick)
    promises: list[Promise] = []
    notes: list[str] = []
    for place, name in enumerate(names, 1):
        progress(f"scenario {place} of {len(names)}: {name}")
        try:
            found = try_scenario(name, _QUICK_SECONDS if options.quick else _SECONDS)
        except FwtopError as error:  # the others can still be measured
            notes.append(f"left out: {name}: {safe_text(error)}")
            continue
        promises += [one for one in found if one.came]
        notes += [unmet(one) for one in found if not one.came]
        if not found:
            notes.append(f"{name}: no rule was proposed")
    progress("")
    if not promises:
        raise FwtopError(f"nothing was measured; {'; '.join(notes)}")
    return to_document(promises, notes)


def chosen(names: tuple[str, ...], *, quick: bool) -> list[str]:
    """Return the named scenarios, or all that hold one attack; raises FwtopError (2) for any other name."""
    known = [name for name in methods() if name != _NOT_STOPPED]
    for name in names:
        if name not in known:
            raise FwtopError(
                f"{safe_text(name, limit=40)!r} is no scenario of one attack (there are {', '.join(known)})",
                2,
            )
    return [*names] or ([*_QUICK] if quick else known)


def unmet(promise: Promise) -> str:
    """Return a line for a rule that no packet of the flood came to."""
    return (
        f"{promise.scenario}: predicted {promise.predicted:.1%}, but the kernel drops the flood before "
        f"it comes to where the rule stands: {promise.summary}"
    )


def to_document(promises: Sequence[Promise], notes: Sequence[str]) -> Document:
    """Return the table, with a note for each promise that wasn't kept."""
    return Document(
        "proposals", 1, tuple(_results(promises)), (*notes, *missed(promises)), lines=tuple(_lines(promises))
    )


def _results(promises: Sequence[Promise]) -> Iterator[Result]:
    for one in promises:
        name = f"{one.scenario}: {one.number}. {one.kind}"
        yield Result(f"{name}: predicted", "share", (one.predicted,))
        yield Result(f"{name}: stopped", "share", (one.stopped,))
    yield Result("predicted against stopped", "points", tuple(one.points for one in promises))


def _lines(promises: Sequence[Promise]) -> Iterator[str]:
    width = max(len(one.scenario) for one in promises)
    heads = f"{'n':>3}  {'kind':<9}{'predicted':>10}{'stopped':>9}{'off by':>8}{'of packets':>12}"
    yield f"{'':<{width}}{heads}  proposal"
    for one in promises:
        yield (
            f"{one.scenario:<{width}}{one.number:>3}  {one.kind:<9}{one.predicted:>10.1%}{one.stopped:>9.1%}"
            f"{one.points:>8.1f}{number(one.came):>12}  {one.summary.partition(' (')[0]}"
        )
    points = [one.points for one in promises]
    median, worst = statistics.median(points), max(points)
    scenarios = len({one.scenario for one in promises})
    plural = "" if scenarios == 1 else "s"
    yield ""
    yield (
        f"{len(promises)} proposals of {scenarios} scenario{plural}: off by {median:.1f} points in the "
        f"median, {worst:.1f} at worst"
    )


def missed(promises: Sequence[Promise]) -> list[str]:
    """Return a line for each prediction that was too far off, and one for the median if that was."""
    lines = [
        f"A8 {one.scenario}: predicted {one.predicted:.1%}, stopped {one.stopped:.1%}: {one.summary}"
        for one in promises
        if one.points > _WORST_POINTS
    ]
    median = statistics.median(one.points for one in promises)
    return [*lines, *([f"A8: {median:.1f} points off in the median"] if median > _MEDIAN_POINTS else [])]


_PPS = 20_000  # low enough that nothing is lost for lack of CPU time
_TRIED = 2  # proposals of a scenario
_WHOLE = 0.5  # share of the packets that an attack is, if it is the one that the lab sends
_SETTLE_SECONDS = 0.5  # until the flood has its full rate
_BEFORE_REASSEMBLY = frozenset({Kind.XDP, Kind.TC, Kind.NFTABLES})
_METER = """
table inet fwtop_bench {
    counter datagrams { }
    chain arriving {
        type filter hook prerouting priority -399; policy accept;
        counter name datagrams
    }
}
"""


class Promise(Struct, frozen=True):
    """One proposal: the predicted share stopped (0 to 1), and packets of the flood with its rule."""

    scenario: str
    number: int
    kind: str
    summary: str
    predicted: float
    dropped: int
    came: int  # to where the rule stands, in what it counts: frames or datagrams

    @property
    def stopped(self) -> float:
        """The share (0 to 1) that the rule dropped."""
        return self.dropped / self.came if self.came else 0.0

    @property
    def points(self) -> float:
        """Error of the prediction in percentage points."""
        return abs(self.predicted - self.stopped) * 100


class Counts(Struct, frozen=True):
    """Packets so far: those of the flood by frames and by datagrams, and those that rules dropped."""

    frames: int
    datagrams: int
    dropped: int


def try_scenario(name: str, seconds: float) -> list[Promise]:
    """Observe a scenario's attack for some seconds, and try its proposals; raises FwtopError."""
    with Lab(name) as lab:
        try:
            run_tool("ip", "netns", "exec", lab.victim, "nft", "-f", "-", text=_METER)
            observation = _observed(lab, seconds)
            return list(_tried(lab, observation, seconds))
        finally:
            forget_session(lab)


def _observed(lab: Lab, seconds: float) -> dict[str, Any]:
    """Return an observation of the attack beside the clients' traffic, which is stored as well."""
    lab.start_flood(_PPS)
    time.sleep(_SETTLE_SECONDS)
    text = _fwtop(lab, "snapshot", "--seconds", f"{seconds:g}", "--json")
    lab.stop()
    lab.pause_clients()
    observation: dict[str, Any] = json.loads(text)
    return observation


def _tried(lab: Lab, observation: dict[str, Any], seconds: float) -> Iterator[Promise]:
    for proposal in offered(observation):
        _fwtop(lab, "apply", str(proposal["n"]), "--yes")
        try:
            before = _counts(lab)
            lab.start_flood(_PPS, seconds=seconds)
            lab.pause_clients()
            time.sleep(seconds)
            lab.stop()
            yield compared(lab.scenario.name, proposal, before, _counts(lab))
        finally:
            _fwtop(lab, "undo", "--all")


def offered(observation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first rules that promise to stop something of the attack that is most of the traffic."""
    whole = {attack["title"] for attack in observation["attacks"] if attack["share"] >= _WHOLE}
    rules = [
        proposal
        for proposal in observation["proposals"]
        if proposal["fwtop"] and proposal["attack_share"] > 0 and proposal["attack"] in whole
    ]
    return rules[:_TRIED]


def compared(scenario: str, proposal: dict[str, Any], before: Counts, after: Counts) -> Promise:
    """Compare what a proposal said with what was counted."""
    frames, datagrams = after.frames - before.frames, after.datagrams - before.datagrams
    return Promise(
        scenario, proposal["n"], proposal["kind"], proposal["summary"],
        proposal["attack_share"],
        after.dropped - before.dropped,
        frames if proposal["kind"] in _BEFORE_REASSEMBLY else datagrams,
    )  # fmt: skip


def _counts(lab: Lab) -> Counts:
    """Read all counters while neither flood nor clients send; clients' packets are taken off."""
    nft = ("nft", "-j", "list", "counters", "table", "inet", "fwtop_bench")
    listing = json.loads(run_tool("ip", "netns", "exec", lab.victim, *nft))
    (datagrams,) = (item["counter"]["packets"] for item in listing["nftables"] if "counter" in item)
    clients = sum(lab.packets_by_client().values())
    status = json.loads(_fwtop(lab, "status", "--json"))
    dropped = sum(rule["packets"] or 0 for rule in status["mitigations"])
    return Counts(lab.arrived()[0] - clients, datagrams - clients, dropped)


def _fwtop(lab: Lab, *words: str) -> str:
    environment = {"SSH_CONNECTION": lab.ssh_connection}
    return run_fwtop(*words, "--netns", lab.victim, environment=environment)
