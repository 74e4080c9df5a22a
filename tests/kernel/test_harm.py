"""A rule that cuts clients off is found by what they get, and its trial ends: passes, cut, passes again."""

from __future__ import annotations

from pathlib import Path

import pytest
from guardian_bench import PORT, Bench, apply, rules_of

from fwtop.client.discovery import GuardianClient
from fwtop.lab import network as net
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientLoss
from fwtop.model.protocol import Keep, Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.wire import plain
from fwtop.render.verdict import Badge, verdict_of
from fwtop.store.events import derive
from tests.conftest import poll_until_true
from tests.kernel import watching
from tests.kernel.conftest import Host, NetnsPair

pytestmark = pytest.mark.kernel
ENOUGH = 200  # handshakes, that anything can be compared with


def handshakes(lab: Lab) -> int:
    return int(lab.results()["handshakes"])


def more(lab: Lab, count: int) -> None:
    """Wait until clients have completed so many more."""
    before = handshakes(lab)
    poll_until_true(lambda: handshakes(lab) >= before + count)


def undo(console: GuardianClient, rule_id: str, why: str) -> None:
    console.demand(Undo((rule_id,), why=why))


@pytest.mark.one_each("xdp")
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_a_trial_that_cuts_clients_off_ends_and_they_are_served_again(kind: Kind, tmp_path: Path) -> None:
    with Lab("calm") as lab:
        victim = Host(lab.victim, net.VICTIM_INTERFACE, net.VICTIM_4, net.VICTIM_6)
        attacker = Host(lab.attacker, net.ATTACKER_INTERFACE, net.GATEWAY_4, net.GATEWAY_6)
        bench = Bench(NetnsPair(victim, attacker), tmp_path)
        try:
            with (
                bench.connect() as guardian,
                bench.connect("console") as console,
                watching.watched(bench, undo=lambda *said: undo(console, *said)) as session,
            ):
                shown = watching.tick(bench, session)
                start = handshakes(lab)

                def look() -> tuple[ClientLoss, ...]:
                    nonlocal shown
                    before, shown = shown, watching.tick(bench, session)
                    events.extend(derive(before, shown))
                    return tuple(loss for loss in shown.losses if loss.is_harm)

                events: list[object] = []
                assert poll_until_true(lambda: look() or handshakes(lab) >= start + ENOUGH) is True, "no harm"
                match = Match(protocol=6, dport=80)
                rule_id = apply(guardian, Rule("", kind, match, "of the test", 600), 60, force=True)
                (harm,) = poll_until_true(look)
                assert (harm.rule, harm.service) == (rule_id, "80/tcp")
                assert verdict_of(shown, shown.at).badge is Badge.HARM
                assert rules_of(guardian) == {}, "the trial has ended"
                why = rf"^rule {rule_id} ended at .*: undone by console: it did harm, clients of 80/tcp "
                with pytest.raises(FwtopError, match=why):
                    guardian.demand(Keep(rule_id))
                more(lab, ENOUGH)
                assert poll_until_true(lambda: not look() and not shown.mitigations)
                assert [getattr(event, "kind", "") for event in events][-3:] == [
                    "rule_applied", "rule_harms", "rule_undone",
                ]  # fmt: skip
        finally:
            bench.close()


SERVICE = f"udp dport {PORT}"
NFT = """table inet host {{ chain in {{ type filter hook input priority 0; policy drop
    ct state established,related accept
    iif "lo" accept
    {last}
}}
}}"""
IPTABLES = """*filter
:INPUT DROP [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p udp -m udp --dport {port}{state} -j ACCEPT
COMMIT
"""
FIREWALLS = {
    "nft on states": ("nft -f", NFT.format(last=f"{SERVICE} ct state new accept"), True),
    "nft": ("nft -f", NFT.format(last=f"{SERVICE} accept"), False),
    "iptables on states": (
        "iptables-restore", IPTABLES.format(port=PORT, state=" -m conntrack --ctstate NEW"), True,
    ),
    "iptables": ("iptables-restore", IPTABLES.format(port=PORT, state=""), False),
}  # fmt: skip


@pytest.mark.one_each("nft on states", "iptables")
@pytest.mark.parametrize("name", list(FIREWALLS))
def test_a_preview_says_first_which_service_a_firewall_on_states_will_close(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    program, rules, closes = FIREWALLS[name]
    file = tmp_path / "rules"
    file.write_text(rules)
    bench.pair.victim.run(*program.split(), str(file))
    path = bench.path(4)
    rule = Rule("", Kind.NOTRACK, Match(family=4, protocol=17, dport=PORT), "of the test", 600)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        told = guardian.demand(Plan(plain(rule))).data["needs_force"]
        said = f"your firewall will then drop ALL of {PORT}/udp: it lets in only tracked packets"
        assert told.startswith(said) if closes else not told
        rule_id = apply(guardian, rule, force=True)
        assert path.passes(wait_s=1.0 if closes else 30) is not closes
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=30)
