"""A fleet's server and node as units of a real systemd: one machine is both, and the operator's too."""

from __future__ import annotations

import pytest
from systemd_container import SOON, told_by

from fwtop.model.paths import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]
_SCRIPT = """\
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
say() { echo "$1: $2"; }
main() { systemctl show $1 --property=MainPID --value; }
ssh-keygen -q -t ed25519 -N '' -f /root/key
fwtop fleet init prod --listen 127.0.0.1 --signer /root/key.pub >/root/init 2>&1
say init "$(tail -n 1 /root/init)"
token() { token=$(fwtop fleet token --machines 1); }
soon token
say server "$(systemctl is-active fwtop-broker) $(ps -o user= $(main fwtop-broker))"
fwtop fleet join tls://127.0.0.1:4222 $token --name web-1 --labels web >/root/join 2>&1 &
waits() { fwtop fleet nodes | grep -q waits; }
soon waits
say admitted "$(fwtop fleet nodes --approve | head -n 1)"
wait
say joined "$(grep "is a machine of" /root/join)"
node=$(main fwtop-fleet)
say node "$(systemctl is-active fwtop-fleet) $(ps -o user= $node)"
say rights "$(grep CapEff /proc/$node/status | tr -d '\\t')"
say filter "$(grep Seccomp: /proc/$node/status | tr -d '\\t')"
listed() { fwtop fleet nodes >/dev/null && fwtop fleet status | grep -q '^web-1'; }
soon listed
block() { fwtop fleet block $1 --on web --everywhere --yes --measure 1s --key /root/key 2>&1 | tail -n 1; }
say kept "$(block 192.0.2.0/24)"
kill -9 $node
restarted() { [ "$(main fwtop-fleet)" != $node ] && systemctl is-active --quiet fwtop-fleet; }
soon restarted
say rules "$(fwtop status 2>&1 | grep -c 192.0.2.0)"
systemctl stop fwtop-broker
say gone "$(fwtop fleet status 2>&1 | tail -n 1)"
systemctl start fwtop-broker
soon listed
say again "$(block 198.51.100.0/24)"
say left "$(fwtop fleet leave 2>&1 | tail -n 1)"
say units "$(systemctl is-active fwtop-fleet) $(systemctl is-enabled fwtop-fleet fwtop-broker | tr '\\n' ' ')"
say stays "$(fwtop status 2>&1 | grep -c 192.0.2.0)"
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of the units, from init to leave."""
    binds = {
        ROOT / ".venv/bin/nats-server": "/usr/local/lib/fwtop/venv/bin/nats-server",
        **{
            ROOT / f"scripts/files/{name}": f"/usr/local/lib/systemd/system/{name}"
            for name in ("fwtop-broker.service", "fwtop-fleet.service")
        },
    }
    return told_by(tmp_path_factory.mktemp("systemd"), SOON + _SCRIPT, binds)


def test_init_and_join_start_units_without_rights(told: dict[str, str]) -> None:
    assert told["server"] == "active fwtop-broker", told
    assert told["admitted"] == "web-1: admitted"
    assert told["joined"].startswith("web-1 is a machine of prod"), told
    assert told["node"] == "active fwtop-fleet", told
    assert (told["rights"], told["filter"]) == ("CapEff:0000000000000000", "Seccomp:2")


def test_rules_stay_without_node_and_server_and_both_come_back(told: dict[str, str]) -> None:
    assert "kept on 1 of 1 machines" in told["kept"], told
    assert told["rules"] == "1"
    assert "rules in force stay" in told["gone"], told
    assert "kept on 1 of 1 machines" in told["again"], told


def test_who_leaves_has_no_unit_and_keeps_its_rules(told: dict[str, str]) -> None:
    assert told["left"].startswith("web-1 left prod"), told
    assert told["units"] == "inactive disabled enabled ", told
    assert told["stays"] == "1"
