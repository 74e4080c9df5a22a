"""What `contrib/` offers to neighbours, with the real fail2ban and CrowdSec of Debian, in a namespace."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fwtop.kernel.programs import module_argv
from tests.kernel.conftest import NetnsPair

pytestmark = pytest.mark.kernel
Poll = Callable[..., Any]
CONTRIB = Path(__file__).parents[2] / "contrib"
_PROFILES = """
name: ban
filters: [Alert.GetScope() == "Ip"]
decisions: [{type: ban, duration: 4h}]
on_success: break
"""


class Machine:
    """The victim, where `fwtop` is this clone's and daemons keep their files in a directory."""

    def __init__(self, netns: str, attacker: str, address: str, directory: Path) -> None:
        self.netns, self.attacker, self.address, self.directory = netns, attacker, address, directory
        program = directory / "bin/fwtop"
        program.parent.mkdir()
        words = shlex.join(module_argv("fwtop"))
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", self.netns, *argv],
            capture_output=True, text=True, timeout=60, env=self.environment, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    @contextmanager
    def running(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        log = self.directory / f"{Path(argv[0]).name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.netns, *argv],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, env=self.environment,
            )  # fmt: skip
            try:
                yield process
            finally:
                process.terminate()
                process.wait(30)
                print(log.read_text()[-3_000:])  # shown if the test failed

    def rules(self) -> list[dict[str, Any]]:
        return list(json.loads(self.run("fwtop", "status", "--json"))["mitigations"])

    def entries(self, name: str) -> set[str]:
        lists = json.loads(self.run("fwtop", "list", "show", "--json"))["lists"]
        if name not in {one["name"] for one in lists}:
            return set()
        lines = (line.split("#")[0].strip() for line in self.run("fwtop", "list", "save", name).splitlines())
        return {line for line in lines if line}

    def refuses(self) -> bool:
        """Whether a SYN gets to the victim's stack, which refuses it; else it is not answered at all."""
        code = (
            "import socket, sys; probe = socket.socket(); probe.settimeout(1); "
            "sys.exit(probe.connect_ex((sys.argv[1], 81)))"
        )
        argv = ["ip", "netns", "exec", self.attacker, sys.executable, "-c", code, self.address]
        done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
        return done.returncode == errno.ECONNREFUSED


@pytest.fixture
def machine(netns_pair: NetnsPair, tmp_path: Path) -> Iterator[Machine]:
    victim, attacker = netns_pair.victim, netns_pair.attacker
    made = Machine(victim.netns, attacker.netns, victim.ipv4, tmp_path)
    yield made
    made.run("fwtop", "undo", "--all")
    for one in json.loads(made.run("fwtop", "list", "show", "--json"))["lists"]:
        made.run("fwtop", "list", "delete", one["name"])


def of_this_clone(name: str, copy: Path) -> Path:
    """Copy a program that imports the installed fwtop, and have it import this one."""
    text = (CONTRIB / name).read_text()
    assert "/usr/local/lib/fwtop/app" in text
    copy.write_text(text.replace("/usr/local/lib/fwtop/app", str(CONTRIB.parent)))
    return copy


def guardian_of(netns: str) -> int:
    wanted = os.stat(f"/run/netns/{netns}").st_ino
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"fwtop.guardian" in words and os.stat(entry / "ns/net").st_ino == wanted:
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no guardian")


def test_fail2ban_bans_and_unbans_and_survives_a_guardian_s_end(machine: Machine, poll_until: Poll) -> None:
    config, log = machine.directory / "fail2ban", machine.directory / "auth.log"
    shutil.copytree("/etc/fail2ban", config)
    of_this_clone("fail2ban/fwtop-ban.py", config / "action.d/fwtop-ban.py")
    shutil.rmtree(config / "jail.d")
    (config / "filter.d/wrong.conf").write_text(
        "[Definition]\nfailregex = ^\\s*wrong password from <HOST>$\n"
    )
    (config / "jail.local").write_text(
        f"[wrong]\nenabled = true\nfilter = wrong\nlogpath = {log}\nbackend = polling\nmaxretry = 2\n"
        "bantime = 1h\naction = fwtop-ban.py[via=ipset]\n"
    )
    (config / "fail2ban.local").write_text(
        f"[Definition]\nsocket = {machine.directory}/s\npidfile = {machine.directory}/p\n"
        f"dbfile = None\nlogtarget = STDOUT\n"
    )
    log.touch()

    def attempt(*addresses: str) -> None:
        with log.open("a") as file:
            file.writelines(
                f"{time.strftime('%F %T')} wrong password from {address}\n"
                for address in addresses
                for _ in range(2)
            )

    client = ("fail2ban-client", "-c", str(config), "-s", f"{machine.directory}/s")
    with machine.running("fail2ban-server", "-f", "-c", str(config), "-s", f"{machine.directory}/s"):
        poll_until(lambda: [one for one in machine.rules() if "f2b-wrong" in str(one)])
        assert machine.refuses()
        attempt("10.77.0.2", "2001:db8::7")
        poll_until(lambda: machine.entries("f2b-wrong") == {"10.77.0.2", "2001:db8::7"})
        assert not machine.refuses()
        os.kill(guardian_of(machine.netns), signal.SIGKILL)
        attempt("192.0.2.9")
        poll_until(lambda: "192.0.2.9" in machine.entries("f2b-wrong"))
        machine.run(*client, "set", "wrong", "unbanip", "10.77.0.2")
        poll_until(lambda: "10.77.0.2" not in machine.entries("f2b-wrong"))
        assert machine.refuses()
        assert len(machine.rules()) == 1
    assert machine.rules() == []
    assert machine.entries("f2b-wrong") == set()


@pytest.mark.matrix  # set-up doesn't install 32 MB to be downloaded, 100 MB on the disk, for one test
def test_crowdsec_s_decisions_are_a_list(machine: Machine, poll_until: Poll) -> None:
    if shutil.which("crowdsec") is None:
        pytest.skip("crowdsec is not installed: apt install crowdsec")
    place = machine.directory
    for name in ("data", "hub", "etc/notifications", "etc/patterns"):
        (place / name).mkdir(parents=True)
    (place / "profiles.yaml").write_text(_PROFILES)
    (place / "simulation.yaml").write_text("simulation: false\n")
    (place / "login.yaml").touch()
    (place / "hub/.index.json").write_text("{}")
    (place / "config.yaml").write_text(
        json.dumps({
            "common": {"daemonize": False, "log_media": "stdout", "log_level": "info"},
            "config_paths": {
                "config_dir": f"{place}/etc", "data_dir": f"{place}/data", "hub_dir": f"{place}/hub",
                "simulation_path": f"{place}/simulation.yaml", "index_path": f"{place}/hub/.index.json",
                "notification_dir": f"{place}/etc/notifications", "plugin_dir": f"{place}/etc",
            },
            "db_config": {"type": "sqlite", "db_path": f"{place}/data/crowdsec.db"},
            "api": {
                "client": {"credentials_path": f"{place}/login.yaml"},
                "server": {"listen_uri": "127.0.0.1:8080", "profiles_path": f"{place}/profiles.yaml"},
            },
            "prometheus": {"enabled": False},
        })
    )  # fmt: skip
    cscli = ("cscli", "-c", f"{place}/config.yaml")
    machine.run("ip", "link", "set", "lo", "up")
    machine.run(*cscli, "machines", "add", "test", "--password", "x" * 32, "-f", f"{place}/login.yaml")
    (place / "key").write_text(machine.run(*cscli, "bouncers", "add", "fwtop", "-o", "raw"))

    def ban(*words: str) -> str:
        return machine.run(*cscli, "decisions", *words)

    program = of_this_clone("crowdsec/fwtop-bouncer.py", place / "bouncer.py")
    bouncer = (sys.executable, str(program), "--key-file", f"{place}/key")
    server = ("crowdsec", "-c", f"{place}/config.yaml", "-no-cs", "-no-capi")
    with machine.running(*server):
        poll_until(lambda: ":8080" in machine.run("ss", "-ltn"))
        ban("add", "--ip", "10.77.0.2", "--duration", "4h")
        ban("add", "--range", "198.51.100.0/24", "--duration", "4h")
        with machine.running(*bouncer, "--every", "0.5"):
            poll_until(lambda: machine.entries("crowdsec") == {"10.77.0.2", "198.51.100.0/24"})
            poll_until(machine.rules)
            assert not machine.refuses()
            ban("add", "--ip", "2001:db8::9", "--duration", "4h")
            ban("delete", "--ip", "10.77.0.2")
            poll_until(lambda: machine.entries("crowdsec") == {"198.51.100.0/24", "2001:db8::9"})
            assert machine.refuses()
    with machine.running(*bouncer, "--every", "0.5"):  # nobody answers: the list stays
        log = place / f"{Path(sys.executable).name}.log"
        poll_until(lambda: log.read_text().count("refused") > 1)
        assert machine.entries("crowdsec") == {"198.51.100.0/24", "2001:db8::9"}
