"""Alarms: once each, in formats that hold whatever an attacker sends, and commands that end."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from stored_samples import POISON, START, attack, rule, snapshot, status

from fwtop.alarms import message
from fwtop.alarms.courier import CommandRunner, Courier, alarms, run_command
from fwtop.alarms.message import EVENTS, MAX_BYTES, Alarm, AlarmConfig, parse_line, read_alarms
from fwtop.console.publish.alarms import AlarmEvents, Alarms
from fwtop.model.files import ConfigText
from fwtop.model.traffic.severity import Harm, Severity
from fwtop.model.traffic.snapshot import Incident, Sampling, Snapshot
from fwtop.model.wire import plain

Poll = Callable[..., Any]
ALARM = Alarm("attack_began", "2026-11-22T00:00:00.000Z", "web-1", "syn_flood", "SYN flood", {"pps": 5.0})
SAMPLE = Path(__file__).parents[2] / "docs/alarms.toml"


def tick(second: float, *attacks: Incident, **changes: Any) -> Snapshot:
    made = snapshot(START + second, attacks=attacks)
    tables = replace(made.tables, sampling=Sampling(1.0, 100, 0))
    return replace(made, tables=tables, guardian="ready", **changes)


def told(ticks: list[Snapshot], **given: Any) -> list[str]:
    events = AlarmEvents(AlarmConfig(**given))
    return [alarm.event for item in ticks for alarm in events.next(item)]


def test_an_attack_that_lasts_is_told_once_and_its_end_once() -> None:
    ticks = [tick(second, attack()) for second in range(20)] + [tick(20 + second) for second in range(40)]
    assert told(ticks) == ["attack_began", "attack_ended"]


def test_what_is_only_unusual_raises_no_alarm_and_abuse_that_becomes_an_attack_another() -> None:
    harms = ([Harm.UNUSUAL] * 20, [Harm.ABUSE] * 20, [Harm.ATTACK] * 20)
    one = [replace(attack(), severity=Severity(harm)) for part in harms for harm in part]
    ticks = [tick(second, attack) for second, attack in enumerate(one)]
    assert told(ticks[:20]) == []
    events = AlarmEvents(AlarmConfig())
    alarms = [(alarm.event, alarm.details["class"]) for item in ticks for alarm in events.next(item)]
    assert alarms == [("attack_began", "abuse"), ("attack_changed", "attack")]


def test_a_flicker_is_no_alarm_and_a_pulse_wave_one_attack() -> None:
    assert told([tick(second, *([attack()] if second % 3 == 0 else [])) for second in range(30)]) == []
    pulses = [tick(second, *([attack()] if second % 20 < 10 else [])) for second in range(200)]
    assert told(pulses) == ["attack_began"]
    short = [tick(second, *([attack()] if second % 10 < 2 else [])) for second in range(100)]
    assert told(short + [tick(100 + second) for second in range(40)]) == ["attack_began", "attack_ended"]


def test_a_change_is_told_when_it_is_large_and_once_a_minute() -> None:
    ticks = [tick(second, attack(pps=1000.0 * 3 ** (second // 10))) for second in range(130)]
    assert told(ticks) == ["attack_began", "attack_changed", "attack_changed"]
    assert told([tick(second, attack(pps=1000.0 + second)) for second in range(130)]) == ["attack_began"]


def test_attacks_of_many_targets_are_one_alarm_a_kind() -> None:
    many = [
        tick(second, *(replace(attack(), target=f"udp/{second * 50 + port}") for port in range(50)))
        for second in range(20)
    ]
    assert told(many) == ["attack_began"]


def test_memory_is_bounded_whatever_kinds_there_are() -> None:
    events = AlarmEvents(AlarmConfig(began_seconds=0))
    for second in range(10):
        events.next(tick(second, *(attack(f"kind_{second}_{number}") for number in range(100))))
    assert len(events._attacks.held) <= 128


def test_rules_and_the_watcher_are_told_but_not_rules_from_before() -> None:
    old, new = status(rule(1), START), status(rule(2), START)
    with_old = [tick(second, mitigations=(old,)) for second in range(2)]
    both = [tick(2 + second, mitigations=(old, new)) for second in range(2)]
    assert told(with_old + both) == ["rule_installed", "rule_confirmed"]
    lost = [replace(tick(second), guardian="lost: gone") for second in range(10)]
    assert told([*lost, *(tick(10 + second) for second in range(40))]) == [
        "watcher_degraded",
        "watcher_recovered",
    ]


def test_each_alarm_is_whole_in_json_and_small_enough_for_a_pipe() -> None:
    events = AlarmEvents(AlarmConfig(began_seconds=0))
    poisoned = replace(attack(), title="x" * 256, target="x" * 10_000, sources="12 sources\x1b[2J")
    rules = tuple(status(replace(rule(1), summary="x" * 5000), START) for _ in range(1))
    first = events.next(tick(0, poisoned))
    found = first + events.next(tick(1, poisoned)) + events.next(tick(2, poisoned, mitigations=rules))
    assert {"attack_began", "rule_installed"} <= {alarm.event for alarm in found}
    [began] = [alarm for alarm in found if alarm.event == "attack_began"]
    assert (began.details["incident"], began.details["sources"]) == (poisoned.id, "12 sources·[2J")
    for alarm in found:
        assert len(alarm.line()) < 4096
        assert parse_line(alarm.line()) == alarm


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 5000,
        b'{"event":"rm -rf"}',
        b'{"event":[],"details":{}}',
        b"\xff" * 9,
    ],
)
def test_what_is_no_alarm_is_skipped(line: bytes) -> None:
    assert parse_line(line) is None


def test_a_console_that_was_taken_over_can_only_send_sanitised_alarms() -> None:
    found = parse_line(
        json.dumps(
            {
                **plain(ALARM),
                "message": POISON * 99,
                "details": {POISON: POISON, **{str(n): n for n in range(99)}},
            }
        ).encode()
    )
    assert found is not None
    assert not any(char in found.message for char in "\x1b\n\u202e")
    assert len(found.message) <= 401
    assert len(found.details) == 16
    endless = parse_line(
        json.dumps({**plain(ALARM), "details": {"pps": float("inf"), "n": 10**300}}).encode()
    )
    assert endless is not None
    assert endless.details == {"pps": "inf", "n": 10**300}
    assert b"\x1b" not in message.journal_entry(message.journal_fields(found))
    long = BytesIO(b"x" * (3 * MAX_BYTES) + b"\n" + ALARM.line() + ALARM.line()[:-1])
    assert list(alarms(long)) == [ALARM]


def decoded(entry: bytes) -> dict[str, bytes]:
    """Read the journal's native format as its specification describes it."""
    found, rest = {}, entry
    while rest:
        line, _, after = rest.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", after)
            value, after = after[8 : 8 + size], after[8 + size + 1 :]
        found[name.decode()] = value
        rest = after
    return found


def test_journal_entries_hold_any_text() -> None:
    fields = {"MESSAGE": "two\nlines=", "EMPTY": "", "FWTOP_PPS": "5", "LAST": "a=b\nMESSAGE=forged\n"}
    assert decoded(message.journal_entry(fields)) == {name: text.encode() for name, text in fields.items()}
    with pytest.raises(ValueError, match="no name"):
        message.journal_entry({"a\nb": ""})


def test_an_alarm_reaches_the_journals_socket_with_its_fields(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "j"))
        daemon.settimeout(20)
        message.send_to_journal(ALARM, str(tmp_path / "j"))
        found = decoded(daemon.recv(1 << 16))
    assert found["PRIORITY"] == b"2"
    assert found["FWTOP_EVENT"] == b"attack_began"
    assert found["FWTOP_PPS"] == b"5"
    assert found["MESSAGE_ID"] == message.MESSAGE_ID.encode()


def test_without_a_journal_alarms_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(_: Alarm) -> None:
        raise FileNotFoundError

    courier = Courier(AlarmConfig(), send=missing)
    courier.deliver(ALARM)
    courier.deliver(replace(ALARM, event="test", message="a test"))
    Courier(AlarmConfig(events=()), send=missing).deliver(ALARM)
    assert capsys.readouterr().err == "fwtop: alarm: SYN flood\nfwtop: alarm: a test\n"


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_command_gets_the_alarm_on_its_standard_input(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    assert run_command((*python(code), str(tmp_path / "x")), ALARM.line(), 60) == ""
    assert json.loads((tmp_path / "x").read_text()) == {"schema": 1, **plain(ALARM)}


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path, poll_until: Poll) -> None:
    os.mkfifo(tmp_path / "f")
    reader = os.open(tmp_path / "f", os.O_RDONLY | os.O_NONBLOCK)
    # Parent and child hold the FIFO open; it ends when both are gone.
    code = "import os, sys, signal; f = open(sys.argv[1], 'w'); os.fork(); signal.pause()"
    problem = run_command((*python(code), str(tmp_path / "f")), ALARM.line(), 2)
    assert re.search(r"was killed after ([2-9]|\d\d+)(\.\d)? s$", problem)

    def gone() -> bool:
        try:
            return os.read(reader, 1) == b""
        except BlockingIOError:  # somebody holds it open
            return False

    poll_until(gone)
    os.close(reader)


def test_a_slow_command_holds_no_end_up() -> None:
    told: list[str] = []
    runner = CommandRunner(python("import time; time.sleep(60)"), 60.0, told.append)
    for _ in range(3):
        runner.put(ALARM)
    runner.end(time.monotonic() + 0.1)
    runner.join()
    assert "was killed after" in told[0]
    assert told[1:] == ["the alarm command is too slow: 2 alarms are left out as recording ends"]


def test_what_went_wrong_with_a_command_is_one_line() -> None:
    assert run_command(python("raise SystemExit(3)"), ALARM.line(), 60).endswith("failed with status 3")
    assert run_command(("/nonexistent/x",), ALARM.line(), 60).endswith(
        "can't be run: No such file or directory"
    )
    assert run_command(python("import os; os.close(0)"), ALARM.line(), 60) == ""


def test_a_stuck_or_ended_process_costs_alarms_not_time() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    pipe = Alarms(writing, AlarmConfig())
    for _ in range(1000):
        pipe.send(ALARM)
    assert pipe.problem == "an alarm was not delivered: Resource temporarily unavailable"
    assert os.read(reading, 1 << 20).count(b"\n") > 100
    pipe.send(ALARM)
    assert pipe.problem == ""
    pipe.send(replace(ALARM, message="x" * 5000))
    assert "too long" in pipe.problem
    os.close(reading)
    pipe.send(ALARM)
    assert pipe.problem == "an alarm was not delivered: Broken pipe"
    os.close(writing)


def test_the_sample_holds_every_default() -> None:
    text = "\n".join(line.removeprefix("# ") for line in SAMPLE.read_text().splitlines() if " = " in line)
    assert text.count(" = ") == len(plain(AlarmConfig()))
    unset = ("command =", "webhook =", "webhook_secret", "mail_to =")  # their defaults can't be set
    table = "\n".join(line for line in text.splitlines() if not line.startswith(unset))
    assert read_alarms(ConfigText("x", table)) == (AlarmConfig(), ())
    assert set(AlarmConfig().events) == set(EVENTS) - {"test"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('command = "rm -rf /"', "must be a list of words"),
        ('command = ["notify"]', "full path"),
        ("command = [1]", "must be a list of words"),
        ('user = "root"', "other than root"),
        ("began_seconds = -1", "number from 0 to 3600"),
        ("began_seconds = nan", "number from"),
        ("journal = 1", "true or false"),
        ('events = ["x"]', 'must be a list of "attack_began"'),
        ("wehbook = 1", "wehbook is unknown; the nearest is webhook; it is ignored"),
        ('webhook = "ftp://example.org"', "begins with https:// or http://"),
        ('webhook = "https://exa mple.org"', "begins with https:// or http://"),
        ('webhook = "https://example.org:99999/"', "begins with https:// or http://"),
        ('webhook_secret_file = "secret"', "full path"),
        ('mail_to = ["-oQ/tmp"]', "plain e-mail addresses"),
        ('mail_to = ["a@b\\nBcc: c@d"]', "plain e-mail addresses"),
        ('mail_to = "root"', "plain e-mail addresses"),
        ("=", ":1: invalid statement (column 1); the defaults hold"),
    ],
)
def test_a_wrong_setting_is_told_and_has_its_default(line: str, why: str) -> None:
    config, lines = read_alarms(ConfigText("alarms.toml", line))
    assert config == AlarmConfig()
    assert len(lines) == 1
    assert why in lines[0]
