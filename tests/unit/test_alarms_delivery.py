"""Alarms reach webhook and mail: signed, in order, retried, from disk after a restart, and bounded."""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from stored_samples import POISON

from fwtop.alarms import webhook as sending
from fwtop.alarms.message import SENDMAIL, Alarm, is_address, mail_text, parse_line
from fwtop.alarms.webhook import RefusedError, Spool, Webhook, WebhookSender, signature
from fwtop.model.wire import plain

Poll = Callable[..., Any]
ALARM = Alarm("attack_began", "2026-11-22T00:00:00.000Z", "web-1", "syn_flood", "SYN flood", {"pps": 5.0})


def alarm(number: int) -> Alarm:
    return replace(ALARM, subject=str(number))


class Receiver(Struct):
    """A web server that answers with the next of `statuses`, then with 204, and keeps what it got."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def subjects(self) -> list[str]:
        return [json.loads(body)["subject"] for _, body in self.got]


@contextmanager
def serving(receiver: Receiver) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            if status < 300:
                receiver.got.append((dict(self.headers), body))
            self.send_response(status)
            self.send_header("Location", receiver.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", receiver.port), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    with serving(found):
        yield found


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_FIRST_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(sending, "_LAST_DELAY_SECONDS", 0.1)


@contextmanager
def sender(receiver: Receiver, spool: Path, told: list[str], ends: float = 60.0) -> Iterator[WebhookSender]:
    made = WebhookSender(Webhook(receiver.url, "key", 60.0), Spool(spool), told.append)
    try:
        yield made
    finally:
        made.end(time.monotonic() + ends)
        made.join()


def test_what_is_posted_is_the_alarm_and_its_signature_holds(receiver: Receiver, tmp_path: Path) -> None:
    told: list[str] = []
    with sender(receiver, tmp_path, told) as made:
        made.put(ALARM)
    ((headers, body),) = receiver.got
    assert parse_line(body) == ALARM
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Fwtop-Signature"] == f"sha256={signature('key', headers['X-Fwtop-Timestamp'], body)}"
    assert signature("other", headers["X-Fwtop-Timestamp"], body) not in headers["X-Fwtop-Signature"]
    assert told == []
    assert os.listdir(tmp_path) == []


def test_a_receiver_in_trouble_gets_every_alarm_in_order_once_it_works(
    receiver: Receiver, tmp_path: Path, poll_until: Poll
) -> None:
    receiver.statuses = [503, 429, 500]
    told: list[str] = []
    with sender(receiver, tmp_path, told) as made:
        for number in range(5):
            made.put(alarm(number))
        poll_until(lambda: len(receiver.got) == 5)
    assert receiver.subjects() == ["0", "1", "2", "3", "4"]
    assert told == [
        "the webhook does not work (status 503): alarms wait on disk",
        "the webhook works again",
    ]


@pytest.mark.parametrize("status", [302, 400, 404])
def test_a_refused_alarm_is_left_out_and_no_redirection_is_followed(
    receiver: Receiver, tmp_path: Path, status: int, poll_until: Poll
) -> None:
    receiver.statuses = [status]
    told: list[str] = []
    with sender(receiver, tmp_path, told) as made:
        made.put(alarm(0))
        made.put(alarm(1))
        poll_until(receiver.subjects)
    assert receiver.subjects() == ["1"]
    assert told == [f"the webhook refuses an alarm (status {status}): it is left out"]


def test_alarms_wait_on_disk_for_the_next_start(tmp_path: Path) -> None:
    receiver, told = Receiver(), []
    with serving(receiver):
        pass  # its port is closed now
    with sender(receiver, tmp_path, told, ends=0.2) as made:
        made.put(alarm(0))
        made.put(alarm(1))
    assert told[-1] == "alarms that wait on disk for the webhook: 2; the next recording sends them"
    with serving(receiver), sender(receiver, tmp_path, told) as made:
        made.put(alarm(2))
    assert receiver.subjects() == ["0", "1", "2"]


def test_the_queue_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most=3)
    assert [spool.put(b"%d" % number) for number in range(5)] == [0, 0, 0, 1, 1]
    kept = []
    while found := spool.oldest():
        kept.append(found[1])
        spool.remove(found[0])
    assert kept == [b"2", b"3", b"4"]


def test_two_processes_share_a_queue_and_deliver_each_alarm_once(receiver: Receiver, tmp_path: Path) -> None:
    told: list[str] = []
    with sender(receiver, tmp_path, told) as one, sender(receiver, tmp_path, told) as other:
        for number in range(20):
            (one if number % 2 else other).put(alarm(number))
    assert sorted(map(int, receiver.subjects())) == list(range(20))


def test_a_queue_that_can_t_be_written_is_told(receiver: Receiver, tmp_path: Path) -> None:
    told: list[str] = []
    directory = tmp_path / "spool"
    directory.mkdir()
    with sender(receiver, directory, told) as made:
        directory.rename(tmp_path / "gone")
        made.put(ALARM)
        (tmp_path / "gone").rename(directory)
    line = "an alarm for the webhook can't be queued (No such file or directory): attack_began is left out"
    assert told == [line]


def test_an_alarm_isn_t_sent_once_its_time_is_up(receiver: Receiver) -> None:
    webhook = Webhook(f"http://127.0.0.1:{receiver.port}/")
    for left in (0.0, -0.1):  # it ended between a look at the time and the call
        with pytest.raises(TimeoutError):
            webhook.post(b"{}", left)
    assert not receiver.subjects()


def test_an_answer_that_never_comes_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/", seconds=0.2)
        with pytest.raises(OSError, match="timed out"):
            webhook.post(ALARM.line())
    assert not issubclass(RefusedError, OSError)


def test_an_answer_that_drips_ends_with_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connected = server.accept()[0]
            with connected, suppress(OSError):
                connected.sendall(b"HTTP/1.1 204 OK\r\nX: ")
                for _ in range(20):
                    connected.sendall(b"x")
                    time.sleep(0.05)  # a slow receiver, not a wait for one

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):
            Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", seconds=0.2).post(ALARM.line())
        thread.join()


def test_an_alarm_that_comes_just_before_the_end_is_delivered(receiver: Receiver, tmp_path: Path) -> None:
    class Late(Spool):
        """Gets its alarm, and then the end, while the sender finds nothing in it."""

        def oldest(self) -> tuple[str, bytes] | None:
            found = super().oldest()
            if not asked:
                asked.append(True)
                made.put(ALARM)
                made.end(time.monotonic() + 60.0)
            return found

    asked: list[bool] = [True]
    made = WebhookSender(Webhook(receiver.url), Late(tmp_path), lambda _: None)
    asked.clear()
    made._wake.set()
    made.join()
    assert len(receiver.got) == 1


def test_a_name_and_a_password_in_the_url_are_sent_as_such(receiver: Receiver) -> None:
    Webhook(receiver.url.replace("//", "//ops:p%40ss@")).post(ALARM.line())
    assert receiver.got[0][0]["Authorization"] == "Basic b3BzOnBAc3M="


def test_a_mail_holds_the_alarm_and_one_set_of_headers() -> None:
    line = json.dumps(
        plain(replace(ALARM, message=POISON * 20, host=POISON, details={POISON: POISON}))
    ).encode()
    poisoned = parse_line(line)
    assert poisoned is not None
    long = replace(
        ALARM, message="UDP flood: 3,567 packets a second, 0 of them reach services, or not at all"
    )
    for told in (ALARM, long, poisoned):
        mail = email.message_from_bytes(
            mail_text(told, ("ops@example.org", "root")), policy=email.policy.default
        )
        assert mail["To"] == "ops@example.org, root"
        assert len(mail.get_all("Subject")) == 1
        assert not re.search(rb"^\S+:\s*$", mail_text(told, ("root",)).partition(b"\n\n")[0], re.MULTILINE)
        assert mail["Bcc"] is None
        assert told.message[:20] in mail.get_body().get_content()
        (attached,) = mail.iter_attachments()
        assert json.loads(attached.get_content()) == plain(told)


def test_recipients_are_never_options_of_sendmail() -> None:
    assert is_address("ops@example.org")
    assert is_address("root")
    for text in ("-oQ/tmp", "a b@c", "|sh", "a@b,c@d", "a@-b", "", "a@b\n", "x" * 400):
        assert not is_address(text)
    assert SENDMAIL[-1] == "--"
