"""The recorder as a unit of a real systemd, in a container of its own."""

from __future__ import annotations

import pytest
from systemd_container import SOON, told_by

from fwtop.model.paths import ROOT, SERVICE_UNIT

pytestmark = pytest.mark.kernel
# What is told is a line a fact: its name, then what was seen.
_SCRIPT = """\
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
main() { systemctl show fwtop.service --property=MainPID --value; }
say() { echo "$1: $2"; }
say off "$(fwtop service 2>&1)"
say enabled "$(fwtop service enable 2>&1)"
say journal "$(journalctl --unit=fwtop --output=cat | tail -n 5 | tr '\\n' ' ')"
first=$(main)
[ "$first" != 0 ] || exit 1
say user "$(ps -o user= $first)"
say rights "$(grep CapEff /proc/$first/status | tr -d '\\t')"
say filter "$(grep Seccomp: /proc/$first/status | tr -d '\\t')"
say guardians "$(systemctl list-units --plain --no-legend 'fwtop-guardian-*' | wc -l)"
fwtop block 192.0.2.7 --yes >/dev/null 2>&1
kill -9 $first
again() { [ "$(main)" != $first ] && systemctl is-active --quiet fwtop; }
soon again
say killed "$(fwtop service 2>&1)"
gap() { gap="$(fwtop report --format md -o - | grep 'nothing was recorded in the')"; }
soon gap
say gap "$gap"
say disabled "$(fwtop service disable 2>&1)"
say rules "$(fwtop status 2>&1 | grep -c 192.0.2.7)"
say end "$(systemctl show fwtop.service --property=Result --value)"
stream() { timeout 60 socat -t 60 - UNIX-CONNECT:/run/fwtop/api.sock; }
ask() { echo '{"verb": "status", "number": 1}' | stream | head -c 300; }
server() { systemctl show fwtop-api.service --property=MainPID --value; }
systemctl enable --now fwtop-api.socket >/dev/null 2>&1
say waits "$(systemctl is-active fwtop-api.socket fwtop-api.service | tr '\\n' ' ')"
say answers "$(ask)"
served=$(server)
say serves "$(systemctl is-active fwtop-api.service)"
kill -9 $served
say survives "$(ask)"
[ "$(server)" != $served ] && say successor yes
systemctl stop fwtop-api.socket fwtop-api.service
say stands "$(fwtop status 2>&1 | grep -c 192.0.2.7)"
changed() { sysctl -n net.netfilter.nf_conntrack_udp_timeout; }
leave() {  # a sysctl that is overdue, and nobody who gives it back
  fwtop sysctl conntrack_udp_timeout=10 --ttl 2s --yes >/dev/null 2>&1
  pkill -STOP -f fwtop.guardian; pkill -KILL -f fwtop.guardian  # the watchdog, too
  sleep 4
}
systemctl start fwtop-overdue.service
say nothing "$(systemctl show fwtop-overdue.service --property=ConditionResult --value)"
leave
say left "$(changed)"
systemctl start fwtop-overdue.service
say again "$(changed)"
leave
say more "$(changed)"
systemctl start fwtop-overdue.timer
given_back() { [ "$(changed)" = 30 ]; }
soon given_back
say timer "$(changed)"
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the unit did from enabling to disabling, by what was asked."""
    folder = tmp_path_factory.mktemp("systemd")
    (folder / "options").write_text('FWTOP_RECORD="-i lo"\n')
    files = ROOT / "scripts/files"
    binds = {folder / "options": "/etc/default/fwtop", files / "fwtop.service": str(SERVICE_UNIT)}
    for name in ("fwtop-overdue.service", "fwtop-overdue.timer", "fwtop-api.socket", "fwtop-api.service"):
        binds[files / name] = f"/etc/systemd/system/{name}"
    return told_by(folder, SOON + _SCRIPT, binds)


def test_it_is_off_until_it_is_enabled_and_then_records(told: dict[str, str]) -> None:
    assert told["off"].startswith("off, doesn't start at boot"), told
    assert told["enabled"].startswith("recording, starts at boot; no attack; session "), told


def test_it_runs_without_rights_and_its_guardian_is_a_unit_of_its_own(told: dict[str, str]) -> None:
    assert told["user"] == "fwtop", told
    assert told["rights"] == "CapEff:0000000000000000"
    assert told["filter"] == "Seccomp:2"
    assert told["guardians"] == "1"


def test_killed_it_is_started_again_and_no_end_of_it_removes_a_rule(told: dict[str, str]) -> None:
    assert told["killed"].startswith("recording, starts at boot; "), told
    assert "restarts after failures: 1" in told["killed"]
    assert "before this session: what recorded" in told["gap"], told["gap"]
    assert told["disabled"].startswith("off, doesn't start at boot"), told
    assert (told["rules"], told["end"]) == ("1", "success")


def test_systemd_starts_the_stream_for_programs_with_the_first_and_again_after_a_kill(
    told: dict[str, str],
) -> None:
    assert told["waits"].split() == ["active", "inactive"], told
    for name in ("answers", "survives"):
        assert '"ok":true' in told[name].replace(" ", ""), told[name]
    assert (told["serves"], told["successor"]) == ("active", "yes"), told
    assert told["stands"] == "1", "without it, rules go on"


def test_sysctls_are_given_back_by_the_timer_s_unit_which_starts_nothing_without_any(
    told: dict[str, str],
) -> None:
    assert told["nothing"] == "no", told
    assert (told["left"], told["again"]) == ("10", "30"), told
    assert (told["more"], told["timer"]) == ("10", "30"), told
