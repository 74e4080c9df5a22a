"""A rule's measured harm to legitimate clients, and the harm that fwtop predicted.

The rule is installed by a fwtop command line, as an operator would do it. `--preview` predicts its harm under
attack twice: when fwtop has seen nothing but the attack, and when it has a baseline. Measured harm is the
share of the clients' usual traffic lost to the rule: each client's packets of each kind of request are
weighted by the increase in that kind's failure rate.
"""

from __future__ import annotations

import glob
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.lab import scenario
from fwtop.lab.namespaces import Namespaces
from fwtop.lab.namespaces import run as run_tool
from fwtop.lab.processes import Program
from fwtop.lab.run import Lab
from fwtop.lab.traffic.pools import PAGES, ZONE, LegitimateClients, draw_clients, request
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SETTLE_SECONDS = 1.0  # enough to use up a limit's burst
_PATIENCE_SECONDS = 1.1  # longer than any client's timeout
_LEARN_SECONDS = 14.0  # a baseline starts after 3 s of quiet and is trusted after 5 s more
_PROTOCOLS = {"http": "tcp", "operator": "tcp", "dns": "udp"}  # by kind of request
_QUIET, _ATTACKED, _RULED = PHASES = ("before", "under attack", "with the rule")
BASELINE, GUESS = "from a baseline", "by guess"

Usual = Mapping[tuple[str, str], float]  # (client, kind of request) → packets in quiet times
Rows = list[dict[str, Any]]


class Harm(Struct, frozen=True):
    """One rule's harm as shares from 0 to 1. Keys of `predicted`: BASELINE, GUESS."""

    name: str
    title: str
    predicted: Mapping[str, float]
    measured: float
    tried: int
    success: tuple[float, ...] = ()  # share of attempts, by PHASES
    latency_ms: tuple[float, ...] = ()  # median, by PHASES
    cut: float = 0.0  # share of served clients that the rule cuts off

    @property
    def points(self) -> float:
        """Error of the prediction in percentage points; that from a baseline where there is one."""
        return abs(self.predicted.get(BASELINE, self.predicted.get(GUESS, 0.0)) - self.measured) * 100


def run_trial(trial: Trial, seconds: float, *, learn: bool = True) -> Harm:
    """Set up a lab and run a trial: under attack, quiet, under attack with the rule.

    Without `learn`, harm is predicted by guess only, which saves the time to learn a baseline.
    """
    with Lab(scenario.parse(trial.scenario, trial.name), source=trial.scenario) as lab:
        for argv in trial.before:
            run_tool("ip", "netns", "exec", lab.victim, *argv)
        lab.start_flood(trial.pps)
        time.sleep(_SETTLE_SECONDS)
        lab.phase(_ATTACKED)
        guessed = _predicted_harm(lab, trial.rule, known=False)
        lab.phase("over")
        lab.stop()
        time.sleep(_SETTLE_SECONDS)
        usual = _learnt(lab) if learn else quiet(lab, _QUIET, seconds)
        lab.start_flood(trial.pps)
        predicted = {GUESS: guessed}
        if learn:
            time.sleep(_SETTLE_SECONDS)
            predicted = {BASELINE: _predicted_harm(lab, trial.rule, known=True), **predicted}
        install(lab, trial.rule)
        ruled(lab, _RULED, seconds)
        each, works = lab.results_by_client(), lab.results()["phases"]
        return Harm(
            trial.name, trial.title, predicted,
            measured_harm(usual, each[_QUIET], each[_RULED]),
            sum(row["tried"] for row in each[_RULED]),
            tuple(_success(each[phase]) for phase in PHASES),
            tuple(_latency_ms(works[phase]) for phase in PHASES),
            _cut(each[_QUIET], each[_RULED]),
        )  # fmt: skip


def _learnt(lab: Lab) -> Usual:
    """Let `fwtop record` learn a baseline in quiet times; return what clients send meanwhile."""
    with Program(fwtop_argv("record", "--netns", lab.victim)):
        usual = quiet(lab, _QUIET, _LEARN_SECONDS)
    forget_session(lab)
    return usual


def quiet(lab: Lab, phase: str, seconds: float) -> Usual:
    """Return what clients send while there is no attack."""
    sent = lab.packets_by_client()
    lab.phase(phase)
    time.sleep(seconds)
    now = lab.packets_by_client()
    rows = lab.results_by_client()[phase]
    keys = {(row["client"], row["work"]): (row["client"], _PROTOCOLS[row["work"]]) for row in rows}
    return {work: now.get(key, 0) - sent.get(key, 0) for work, key in keys.items()}


def forget_session(lab: Namespaces) -> None:
    """Delete the victim's recorded session, which would clutter the list of sessions."""
    answer = json.loads(run_fwtop("sessions", "--json"))
    for session in answer["sessions"]:
        if session["netns"] == lab.victim and Path(session["id"]).name == session["id"]:
            for file in Path(answer["directory"]).glob(f"{glob.escape(session['id'])}.*"):
                file.unlink(missing_ok=True)


def _predicted_harm(lab: Lab, rule: tuple[str, ...], *, known: bool) -> float:
    """Return the share of normal traffic that `fwtop … --preview` says a rule would hit."""
    words = (*rule, "--preview", "--json", "--netns", lab.victim)
    answer = json.loads(run_fwtop(*words, environment={"SSH_CONNECTION": lab.ssh_connection}))
    if answer["plan"]["refused"]:
        raise FwtopError(f"fwtop refuses it: {answer['plan']['refused']}")
    preview = answer["preview"]
    if preview is None:  # it drops nothing
        return 0.0
    if preview["guess"] == known:
        raise FwtopError("fwtop has not learnt a baseline" if known else "fwtop had a baseline already")
    return float(preview["collateral_share"])


def install(lab: Lab, rule: tuple[str, ...] | list[str]) -> None:
    """Install a rule by its command line."""
    environment = {"SSH_CONNECTION": lab.ssh_connection}
    run_fwtop(*rule, "--yes", "--netns", lab.victim, environment=environment)


def ruled(lab: Lab, phase: str, seconds: float) -> None:
    """Count clients' attempts under the flood with the rule installed; then stop the flood, undo the rule."""
    time.sleep(_SETTLE_SECONDS)
    lab.phase(phase)
    time.sleep(seconds)
    lab.phase("over")
    time.sleep(_PATIENCE_SECONDS)  # pending attempts must not succeed because the rule is undone
    lab.stop()
    run_fwtop("undo", "--all", "--netns", lab.victim)


def measured_harm(usual: Usual, quiet: Rows, ruled: Rows) -> float:
    """Return the share of usual packets whose requests fail, above the failure rate of quiet times."""
    before, after = _failures(quiet), _failures(ruled)
    total = sum(usual.values())
    lost = sum(
        packets * max(0.0, after.get(key, 0.0) - before.get(key, 0.0)) for key, packets in usual.items()
    )
    return lost / total if total else 0.0


def _cut(quiet: Rows, ruled: Rows) -> float:
    """Return the share of served clients that a rule cuts off, however often each tries."""
    served, still = ({row["client"] for row in rows if row["succeeded"]} for rows in (quiet, ruled))
    return len(served - still) / len(served) if served else 0.0


def _failures(rows: Rows) -> dict[tuple[str, str], float]:
    return {(row["client"], row["work"]): 1 - row["succeeded"] / row["tried"] for row in rows if row["tried"]}


def _success(rows: Rows) -> float:
    tried = sum(row["tried"] for row in rows)
    return sum(row["succeeded"] for row in rows) / tried if tried else 0.0


def _latency_ms(works: Mapping[str, dict[str, Any]]) -> float:
    """Return the median latencies of all kinds of request, averaged with their successes as weights."""
    known = [(work["median_ms"], work["succeeded"]) for work in works.values() if work["succeeded"]]
    total = sum(count for _, count in known)
    return sum(latency * count for latency, count in known) / total if total else 0.0


_SEED = 404
_PPS = 20_000  # low enough that nothing fails for lack of CPU time
_ANSWERED_PPS = 2_000  # queries that the victim's server can keep up with
_IP_TCP_BYTES = 20 + 32  # IPv4, and TCP with timestamps
_DNS = ["--proto", "udp", "--dport", "53"]
_NEAR = 4  # clients within the attackers' networks


class Trial(Struct, frozen=True):
    """An attack (scenario TOML) and a rule (arguments of fwtop's command line)."""

    name: str
    title: str
    scenario: str
    rule: tuple[str, ...]
    pps: int = _PPS
    before: tuple[tuple[str, ...], ...] = ()  # commands that configure the victim first


def trials() -> list[Trial]:
    """Return all trials, with the same clients every time."""
    clients = draw_clients(_SEED)
    near = _networks(clients, _NEAR)
    by_source = f"block the attackers' /16, where {_NEAR} of 12 IPv4 clients are"
    blocks = {
        via: Trial(f"{via}-block", f"{by_source} ({via})", _udp_flood(near), ("block", *near, "--via", via))
        for via in ("ipset", "xdp")
    }
    strangers = ["198.19.7.0/24"]
    title = "block the attackers' /24, where no client is"
    return [
        Trial("ipset-clean", title, _udp_flood(strangers), ("block", *strangers)),
        blocks["ipset"],
        *_limits(clients),
        *_strings(),
        blocks["xdp"],
        *_lengths(),
        *_states(),
    ]


def chosen(names: tuple[str, ...]) -> list[Trial]:
    """Return the named trials, or all; raises FwtopError (2) for an unknown name."""
    found = {trial.name: trial for trial in trials()}
    for name in names:
        if name not in found:
            raise FwtopError(
                f"there is no trial {safe_text(name, limit=40)!r} (there are {', '.join(found)})", 2
            )
    return [found[name] for name in names] or list(found.values())


def _scenario(vector: str, *, firewall: str = "open") -> str:
    return (
        f'title = "a trial of harm"\nseed = {_SEED}\nfirewall = "{firewall}"\n\n'
        f'[[vector]]\nname = "attack"\n{vector}\n'
    )


def _networks(clients: LegitimateClients, count: int) -> list[str]:
    """Return the /16 of `count` clients, none of which is the operator's."""
    operator = _network(clients.operator)
    found = dict.fromkeys(_network(client) for client in clients.clients if ":" not in client)
    return [network for network in found if network != operator][:count]


def _network(client: str) -> str:
    return f"{'.'.join(client.split('.')[:2])}.0.0/16"


def _udp_flood(sources: list[str]) -> str:
    listed = ", ".join(f'"{Prefix.parse(source)}"' for source in sources)
    return _scenario(
        f'kind = "udp_flood"\nprotocol = "udp"\nsource = {{ prefixes = [{listed}], forged = false }}\n'
        'dport = 27015\nsport = "random"\npayload = [{ text = "flood:" }, { random = 64 }]'
    )


def _dns_flood(source: str, *, firewall: str = "open") -> str:
    return _scenario(
        f'kind = "dns_query_flood"\nprotocol = "udp"\nsource = {source}\ndport = 53\n'
        f'payload = {{ make = "dns_query", name = "shop.{ZONE}", type = "ANY", edns = 4096 }}',
        firewall=firewall,
    )


def _http_data() -> str:
    """Return a flood of TCP segments to the web server that belong to no connection."""
    return _scenario(
        'kind = "ack_flood"\nprotocol = "tcp"\nflags = "PSH+ACK"\nsource = "random"\nsport = "random"\n'
        'dport = 80\npayload = [{ text = "GET /shop?page=" }, { random = 64 }]',
        firewall="none",
    )


def _syn_flood() -> str:
    return _scenario(
        'kind = "syn_flood"\nprotocol = "tcp"\nflags = "SYN"\nsource = "random"\nsport = "random"\n'
        'dport = 80\nwindow = 512\nttl = "random"',
        firewall="none",
    )


def _limits(clients: LegitimateClients) -> Iterator[Trial]:
    title = "limit each address to 3 queries a second, half of what clients ask"
    rule = ("limit", *_DNS, "--per", "32", "--rate", "3/s")
    yield Trial("hashlimit-each", title, _dns_flood("{ count = 200 }"), rule)
    near = _networks(clients, 2 * _NEAR)
    listed = ", ".join(f'"{network}"' for network in near)
    title = f"limit each /16, of which {len(near)} hold attackers and a client"
    rule = ("limit", *_DNS, "--per", "16", "--rate", "500/s")
    yield Trial("hashlimit-shared", title, _dns_flood(f"{{ prefixes = [{listed}] }}"), rule)


def _strings() -> Iterator[Trial]:
    rule = ("match", "--string", "GET /shop", "--proto", "tcp", "--dport", "80")
    title = f"match what the attack's data begins with, and 1 in {len(PAGES)} requests"
    yield Trial("string-http", title, _http_data(), rule)
    title = "match the name that the attack asks for, and 1 in 5 queries"
    yield Trial("string-dns", title, _dns_flood('"random"'), ("match", "--dns", f"shop.{ZONE}", *_DNS))


def _lengths() -> Iterator[Trial]:
    longest = sorted(_IP_TCP_BYTES + len(request(page)) for page in PAGES)[-2:]
    rule = ("drop", "--proto", "tcp", "--dport", "80", "--length", f"{longest[0]}:{longest[1]}", "--via")
    title = f"drop by a length that 2 of {len(PAGES)} requests of IPv4 clients have"
    for via in ("xdp", "tc", "nftables"):
        yield Trial(f"{via}-length", f"{title} ({via})", _http_data(), (*rule, via))


def _states() -> Iterator[Trial]:
    flood = _dns_flood('"random"', firewall="none")
    title = "keep DNS out of connection tracking"
    yield Trial("notrack", title, flood, ("notrack", *_DNS), pps=_ANSWERED_PPS)
    before = (("sysctl", "-q", "-w", "net.ipv4.tcp_syncookies=0"),)
    title = "switch SYN cookies on"
    yield Trial("sysctl", title, _syn_flood(), ("sysctl", "syncookies=on"), before=before)
    title = "answer SYNs to the web server with cookies (SYNPROXY)"
    yield Trial("synproxy", title, _syn_flood(), ("synproxy", "--dport", "80"), before=before)
