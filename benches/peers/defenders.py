"""What defends the host in a run: nobody, fwtop, or a tool of others, set up as its own documents say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from benches.anger.lab import AngerLab
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.lab.network import VICTIM_4, VICTIM_INTERFACE

# Debian's own configuration, but for the names of this host. Its ban takes the attacked address off the
# network, which ends the attack and the service; this script blocks what its sample shows instead.
_FASTNETMON = """logging_level = info
enable_ban = on
process_incoming_traffic = on
process_outgoing_traffic = off
ban_details_records_count = 500
ban_time = 1900
networks_list_path = {folder}/fnm/networks
white_list_path = {folder}/fnm/white
check_period = 1
ban_for_pps = on
threshold_pps = {threshold}
average_calculation_time = 1
speed_calculation_delay = 1
mirror_afpacket = on
interfaces = {interface}
notify_script_path = {folder}/fnm/notify
"""
_NOTIFY = r"""#!/bin/sh
# FastNetMon calls this with the attacked address, and with a sample of packets on stdin.
[ "$4" = attack_details ] || [ "$4" = ban ] || exit 0
sample=$(grep -oE '([0-9]+\.){3}[0-9]+:[0-9]+ > '"$1"':[0-9]+ protocol: [a-z]+')
all=$(echo "$sample" | grep -c .); [ "$all" -ge 10 ] || exit 0
few=$(echo "$sample" | cut -d: -f1 | sort | uniq -c | awk -v n="$all" '$1 * 50 >= n { print $2 }')
port=$(echo "$sample" | awk '{split($1, a, ":"); print $NF, a[2]}' | sort | uniq -c | sort -rn |
  awk -v n="$all" 'NR == 1 && $1 * 10 >= n * 9 { print "-p", $2, "--sport", $3 }')
if [ -n "$few" ]; then for one in $few; do iptables -t raw -I PREROUTING -s "$one" -j DROP; done
elif [ -n "$port" ]; then iptables -t raw -I PREROUTING -d "$1" $port -j DROP
else iptables -t raw -I PREROUTING -d "$1" -j DROP; fi
"""
_THRESHOLD_PPS = 2_000  # a second to one address: four times what clients here send
_JAIL = """[DEFAULT]
banaction = iptables-allports
[http-flood]
enabled = true
backend = polling
filter = http-flood
logpath = {folder}/access.log
port = http,https
maxretry = 100
findtime = 10
bantime = 600
"""
_FILTER = '[Definition]\nfailregex = ^<HOST> .*"(GET|POST|HEAD) .*$\n'


class Defender(Struct, frozen=True):
    """A tool by name, and its program's; "": nobody defends."""

    name: str
    program: str = ""
    http_only: bool = False

    @property
    def missing(self) -> bool:
        """Whether its program isn't installed."""
        return self.program not in ("", "fwtop") and shutil.which(self.program) is None

    @contextmanager
    def watching(self, lab: AngerLab) -> Iterator[None]:
        """Defend for the duration of the block."""
        argv = _ARGV[self.name](lab.folder, lab.victim)
        if not argv:
            yield
            return
        child = lab.start(lab.victim, *argv)
        try:
            yield
        finally:
            child.terminate()
            child.wait(10)
            if self.name == "fwtop":
                run_fwtop("undo", "--all", "--netns", lab.victim)
                forget_session(lab)


def _fwtop(folder: Path, victim: str) -> list[str]:
    policy = folder / "automatic.toml"
    policy.write_text("enabled = true\n", encoding="ascii")
    policy.chmod(0o600)
    return fwtop_argv("record", "--netns", victim, "--no-alarms", "--automatic", str(policy))


def _fastnetmon(folder: Path, _: str) -> list[str]:
    mine = folder / "fnm"
    mine.mkdir()
    (mine / "networks").write_text(f"{VICTIM_4}/32\n", encoding="ascii")
    (mine / "white").write_text("", encoding="ascii")
    (mine / "notify").write_text(_NOTIFY, encoding="ascii")
    (mine / "notify").chmod(0o755)
    text = _FASTNETMON.format(folder=folder, threshold=_THRESHOLD_PPS, interface=VICTIM_INTERFACE)
    (mine / "conf").write_text(text, encoding="ascii")
    arguments = ("--configuration_file", str(mine / "conf"), "--log_file", str(mine / "log"))
    return ["fastnetmon", *arguments, "--disable_pid_logic"]


def _fail2ban(folder: Path, _: str) -> list[str]:
    mine = folder / "f2b"
    shutil.copytree("/etc/fail2ban", mine, ignore=shutil.ignore_patterns("jail.d", "jail.local"))
    (mine / "jail.local").write_text(_JAIL.format(folder=folder), encoding="ascii")
    (mine / "filter.d" / "http-flood.conf").write_text(_FILTER, encoding="ascii")
    places = ("-s", f"{mine}/sock", "-p", f"{mine}/pid", "--logtarget", f"{mine}/log")
    return ["fail2ban-server", "-f", "-c", str(mine), *places, "start"]


_ARGV = {
    "nobody": lambda *_: [],
    "fwtop": _fwtop,
    "FastNetMon": _fastnetmon,
    "fail2ban": _fail2ban,
}
DEFENDERS = (
    Defender("nobody"),
    Defender("fwtop", "fwtop"),
    Defender("FastNetMon", "fastnetmon"),
    Defender("fail2ban", "fail2ban-server", http_only=True),
)
