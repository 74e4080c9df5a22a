"""A client's connection: multi-part messages, late answers, reconnecting."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fwtop.client.connection import Connection
from fwtop.console.guardian_link import GuardianLink, GuardianLost
from fwtop.guardian.ownership import WrongThreadError, claim, release, single_threaded
from fwtop.guardian.serving.peer import encode_success, split_answer
from fwtop.kernel import programs
from fwtop.model.errors import FwtopError
from fwtop.model.messages import PART, Answer, NumberedRequest, encode_answer, parse_answer, parse_request
from fwtop.model.protocol import Connect, Keep, Status

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        yield mine, theirs


def read(end: socket.socket) -> NumberedRequest:
    return parse_request(end.recv(1 << 20))


def tell(end: socket.socket, answer: Answer, *descriptors: int) -> None:
    *parts, last = split_answer([encode_answer(answer)])
    for part in parts:
        end.sendmsg(part)
    socket.send_fds(end, last, list(descriptors))


def serve(end: socket.socket, *answers: Callable[[NumberedRequest], Answer]) -> threading.Thread:
    def work() -> None:
        for answer in answers:
            tell(end, answer(read(end)))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def done(asked: NumberedRequest) -> Answer:
    return Answer(True, number=asked.number)


@pytest.mark.parametrize("size", [10, PART, 7 * PART])
def test_answers_of_any_length_come_whole(ends: Pair, size: int) -> None:
    answer = Answer(True, data={"text": "x" * size}, number=1)
    thread = serve(ends[1], lambda _: answer)
    found, _ = Connection(ends[0]).exchange(Status(), 30)
    thread.join()
    assert found == answer
    assert all(sum(map(len, part)) <= PART + 1 for part in split_answer([encode_answer(answer)]))


def test_answers_that_were_encoded_before_are_split_but_never_copied() -> None:
    long = json.dumps("x" * 3 * PART).encode()
    messages = split_answer(encode_success(7, {"short": b"1", "long": long}))
    assert parse_answer(b"".join(b"".join(message[1:]) for message in messages)) == Answer(
        True, data={"short": 1, "long": "x" * 3 * PART}, number=7
    )
    assert sum(view.obj is long for message in messages for view in message if type(view) is memoryview) == 4
    assert split_answer(encode_success(0, {})) == [[b'{"ok": true, "number": 0, "data": {}}']]


def test_a_late_answer_is_told_and_taken_for_no_other(ends: Pair) -> None:
    connection = Connection(ends[0])
    with pytest.raises(TimeoutError):
        connection.exchange(Keep("7"), 0.01)
    first = read(ends[1])
    assert first == NumberedRequest(Keep("7"), 1, 0.01)
    assert connection.take_late() == []
    thread = serve(ends[1], done)
    tell(ends[1], Answer(False, "no", 1, number=first.number))
    answer, _ = connection.exchange(Status(), 30)
    thread.join()
    assert answer.ok
    assert [(item.request, item.answer.error) for item in connection.take_late()] == [(Keep("7"), "no")]
    assert connection.take_late() == []


def test_the_console_goes_on_after_a_late_answer(ends: Pair) -> None:
    link = GuardianLink(ends[0])
    with pytest.raises(FwtopError, match="will follow"):
        link.ask(Keep("7"), seconds=0.01)
    asked = read(ends[1])
    status = {"rule": {"id": "7"}, "state": "confirmed"}
    tell(ends[1], Answer(True, data={"status": status}, number=asked.number))
    assert link.late() == ["keep, answered late: rule 7 is confirmed"]
    assert not link.lost


def test_a_lost_connection_is_restored_through_another(ends: Pair) -> None:
    second, third = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))

    def guardian() -> None:
        for line in (second, third):
            asked = read(ends[1])
            assert asked.request == Connect()
            tell(ends[1], done(asked), line[0].fileno())

    thread = threading.Thread(target=guardian)
    thread.start()
    link = GuardianLink(ends[0])
    other = link.another()
    second[1].close()
    with pytest.raises(FwtopError, match="lost and restored") as caught:
        other.ask(Status(), seconds=30)
    thread.join()
    assert not isinstance(caught.value, GuardianLost)
    thread = serve(third[1], done)
    assert other.ask(Status(), seconds=30).ok
    thread.join()
    ends[1].close()
    third[1].close()
    with pytest.raises(GuardianLost):
        other.ask(Status(), seconds=30)
    assert other.lost
    for line in (link, other):
        line.close()
    second[0].close()
    third[0].close()


def test_programs_end_before_the_request_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.time, "monotonic", lambda: 1000.0)
    assert programs.limited(30) == 30
    with programs.until(1020.0):
        assert programs.limited(30) == 20 - programs.RESERVE_SECONDS
        assert programs.limited(3) == 3
        assert programs.unlimited(programs.limited)(30) == 30
    assert programs.limited(30) == 30


def test_what_a_thread_owns_no_other_may_use() -> None:
    @single_threaded
    class Thing:
        def use(self) -> str:
            return "used"

    thing, failed = Thing(), []

    def elsewhere() -> None:
        try:
            thing.use()
        except WrongThreadError as error:
            failed.append(str(error))

    claim(thing)
    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert failed == ["Thing.use called by thread other"]
    release(thing)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(failed) == 1
