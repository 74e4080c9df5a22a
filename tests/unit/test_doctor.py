"""What doctor says about the machine that the test runs on, and about one that lacks things."""

from __future__ import annotations

import json
import os

from pyroute2.ethtool.ethtool import EthtoolChannels, EthtoolRings
from pyroute2.ethtool.ioctl import NotSupportedError

from fwtop.cli import doctor, main
from fwtop.cli.doctor import checks, interfaces
from fwtop.model import paths

STATES = {checks.OK, checks.WARNING, checks.MISSING, checks.UNKNOWN}


def by_name(checks):
    return {(item.group, item.name): item for item in checks}


def test_every_check_is_told_once_and_what_is_missing_has_a_way_on():
    checks = doctor.examine([])
    assert len(by_name(checks)) == len(checks)
    assert {item.state for item in checks} <= STATES
    for item in checks:
        assert item.detail
        assert "\n" not in item.detail
        assert item.mend or not item.fatal, f"{item.name} is missing, and no command mends it"


def test_facts_that_can_be_checked_otherwise():
    found = by_name(doctor.examine(["lo"]))
    assert os.uname().release in found["kernel", "version"].detail
    privileges = found["kernel", "privileges"].state
    assert privileges == (checks.OK if os.geteuid() == 0 else checks.UNKNOWN)
    btf = found["kernel", "BTF"].state
    assert (btf != checks.MISSING) == os.path.exists("/sys/kernel/btf/vmlinux")
    assert found["interface lo", "XDP program"].detail == "none attached"


def test_json_is_one_document_and_agrees_with_the_exit_status(capsys):
    status = main.main(["doctor", "--json", "-i", "lo"])
    document = json.loads(capsys.readouterr().out)
    fatal = [item for item in document["checks"] if item["essential"] and item["state"] == "missing"]
    assert document["ok"] is (not fatal)
    assert status == (3 if fatal else 0)


def test_an_unknown_interface_is_wrong_usage(capsys):
    assert main.main(["doctor", "-i", "no\x1bsuch"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fwtop: there is no interface")
    assert printed.err.count("\n") == 1
    assert "\x1b" not in printed.err


def test_without_the_system_programs_it_says_so_and_exits_3(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(checks.ENVIRONMENT, "PATH", str(tmp_path))
    assert main.main(["doctor", "-i", "lo"]) == 3
    printed = capsys.readouterr().out
    assert "apt-get install ipset" in printed
    assert "fwtop does not work here yet: ip, iptables, ipset" in printed


def test_an_old_kernel_is_an_essential_lack(monkeypatch):
    monkeypatch.setattr(
        checks.os, "uname", lambda: os.uname_result(("Linux", "h", "5.4.0-1-amd64", "v", "x86_64"))
    )
    version = by_name(checks.kernel_checks())["kernel", "version"]
    assert version.fatal
    assert "5.8" in version.detail


def test_a_directory_that_others_can_read_is_a_warning_with_the_command(monkeypatch, tmp_path):
    open_directory = tmp_path / "open"
    open_directory.mkdir(mode=0o755)
    monkeypatch.setattr(paths, "STATE_DIRECTORY", open_directory)
    monkeypatch.setattr(paths, "GUARDIAN_DIRECTORY", tmp_path / "absent")
    by_place = {item.name: item for item in checks.installed_checks(None)}
    found = by_place[f"sessions: {open_directory}"]
    assert found.state == checks.WARNING
    assert found.mend == f"chown fwtop {open_directory} && chmod 0700 {open_directory}"
    assert by_place[f"policies that were kept: {tmp_path / 'absent'}"].detail == "missing"


def test_a_damaged_geoip_database_that_was_named_is_missing(tmp_path):
    bad = tmp_path / "bad.mmdb"
    bad.write_bytes(b"no database")
    geoip = next(item for item in checks.installed_checks(str(bad)) if item.name == "GeoIP")
    assert geoip.state == checks.MISSING
    assert str(bad) in geoip.detail


class Told:
    """What a driver tells about queues and rings; None: it doesn't."""

    def __init__(self, channels: EthtoolChannels | None, rings: EthtoolRings | None) -> None:
        self.channels, self.rings = channels, rings

    def get_channels(self, name: str) -> EthtoolChannels:
        if self.channels is None:
            raise NotSupportedError(name)
        return self.channels

    def get_rings(self, name: str) -> EthtoolRings:
        if self.rings is None:
            raise OSError
        return self.rings


def test_queues_and_rings_below_their_most_are_told_with_the_command():
    few = Told(EthtoolChannels(0, 0, 1, 8, 0, 0, 1, 2), EthtoolRings(rx_max=4096, rx=256))
    found = list(interfaces._queues("g", "eth0", few))
    assert [(item.state, item.mend) for item in found] == [
        (checks.WARNING, "ethtool -L eth0 combined 8"),
        (checks.WARNING, "ethtool -G eth0 rx 2048"),
    ]
    most = Told(EthtoolChannels(4, 4, 0, 0, 4, 4, 0, 0), EthtoolRings(rx_max=512, rx=512))
    assert [item.detail for item in interfaces._queues("g", "eth0", most)] == ["4 of 4", "512 of at most 512"]
    assert list(interfaces._queues("g", "eth0", Told(None, None))) == []


def test_the_report_names_what_is_missing_last_and_what_mends_it_below():
    lacking = checks.Check("filters", "ipset", checks.MISSING, "not installed", "apt-get install ipset", True)
    fine = checks.Check("filters", "nft", checks.OK, "/usr/sbin/nft", "never shown")
    shown = doctor.lines([lacking, fine])
    assert shown[1].split() == ["MISSING", "ipset", "not", "installed"]
    assert shown[2].strip() == "→ apt-get install ipset"
    assert shown[-1] == "fwtop does not work here yet: ipset"
    assert "never shown" not in "\n".join(shown)
