"""Hostile clients: the guardian answers or drops them, and goes on serving the others."""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, rules_of

from fwtop.client.discovery import GuardianClient
from fwtop.kernel import namespaces
from fwtop.model.addresses.address import Prefix
from fwtop.model.messages import MAX_MESSAGE, encode_request, parse_answer
from fwtop.model.protocol import (
    Apply,
    Connect,
    Hello,
    Keep,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    PolicyRead,
    Repair,
    Request,
    Rescan,
    RuleRead,
    Rules,
    Status,
    Survey,
    Symbols,
    Undo,
    Why,
)
from fwtop.model.rule import Kind, Match, Range, RateLimit, Rule

pytestmark = pytest.mark.kernel
WIRE = Rule(
    "",
    Kind.XDP,
    Match(sources=(Prefix.parse("192.0.2.0/24"),), protocol=17, ttl=Range(1, 64)),
    "x",
    600,
    limit=RateLimit(5, 6),
).to_dict()
PYTHON = re.compile(r"Error\b|__|argument|codec|unhashable|expected|NoneType")
HELLO = encode_request(Hello("cli", "clone"))


@pytest.fixture(scope="module")
def bench(shared_pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(shared_pair, tmp_path_factory.mktemp("guardian"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def good(bench: Bench) -> Iterator[GuardianClient]:
    """A well-behaved client with a rule, which is served as long as the others come."""
    with bench.connect() as client:
        apply(client, bench.block_rule(4))
        yield client


@pytest.fixture
def address(bench: Bench, good: GuardianClient) -> Iterator[str]:
    """The guardian's socket; afterwards its rule and the client that made it are found well."""
    descriptor = namespaces.open_netns(bench.netns)
    yield str(bench.directory / f"{namespaces.inode(descriptor)}.sock")
    os.close(descriptor)
    assert list(rules_of(good)) == ["1"]


def raw(address: str, *messages: bytes) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.settimeout(60)
    connected.setsockopt(socket.SOL_SOCKET, 32, 4 * MAX_MESSAGE)  # SO_SNDBUFFORCE
    connected.connect(address)
    for message in messages:
        connected.send(message)
    return connected


def is_dropped(connected: socket.socket) -> bool:
    try:
        return connected.recv(MAX_MESSAGE) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "message", [encode_request(Status(), 3), encode_request(Apply({})), b'{"verb": "undo"}']
)
def test_verb_before_hello_is_told_and_drops(address: str, message: bytes) -> None:
    with raw(address, message) as client:
        answer = parse_answer(client.recv(MAX_MESSAGE))
        assert (answer.ok, answer.code) == (False, 2)
        assert answer.error == "say hello first; nothing was done"
        assert answer.number == json.loads(message).get("number", 0)
        assert is_dropped(client)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\x00 not JSON",
        b"[]",
        b"{}",
        b'{"verb": []}',
        b'{"verb": "shell", "command": "id"}',
        b'{"verb": "undo", "ids": "1"}',
        b'{"verb": "undo", "ids": [1]}',
        b'{"verb": "keep"}',
        b'{"verb": "keep", "id": "1; rm -rf /"}',
        b'{"verb": "apply", "rule": {}, "confirm_seconds": -1}',
        b'{"verb": "apply", "rule": {"match": {}}, "confirm_seconds": 0}',
        b'{"verb": "plan", "rule": {"kind": "ipset"}}',
        b"[" * 100_000,
        b'{"verb": "hello", "role": "cli", "build": "clone"}',
        b'{"verb": "policyread", "action": "check", "text": "\\ud800"}',
        b'{"verb": "plan", "rule": {"kind": "ipset", "summary": "", "ttl_seconds": 1, "match": {"x": 1}}}',
        b'{"verb": "plan", "rule": {"kind": "xdp", "summary": "", "ttl_seconds": 1, "match": {"ttl": ""}}}',
        b'{"verb": "listchange", "name": "x", "action": "create", "entries": ["1"]}',
        b'{"verb": "listtest", "name": "x", "entry": "\\u0000"}',
        b'{"verb": "policychange", "action": "apply", "text": "schema = "}',
    ],
)
def test_nonsense_after_hello_gets_an_error(address: str, message: bytes) -> None:
    """With its number, in a sentence without Python's words."""
    numbered = message.replace(b"{", b'{"number": 7, ', 1) if message[:2] == b'{"' else message
    with raw(address, HELLO, numbered) as client:
        client.settimeout(60)
        assert parse_answer(client.recv(MAX_MESSAGE)).ok
        answer = parse_answer(client.recv(MAX_MESSAGE))
        assert not answer.ok
        assert answer.error
        assert "\n" not in answer.error
        assert not PYTHON.search(answer.error), answer.error
        assert answer.number == (7 if numbered != message else 0)


def test_unknown_role_gets_an_error(address: str) -> None:
    with raw(address, encode_request(Hello("root", "clone"))) as client:
        assert not parse_answer(client.recv(MAX_MESSAGE)).ok


def test_too_long_message_is_told_and_drops(address: str) -> None:
    with raw(address, HELLO) as client:
        assert parse_answer(client.recv(MAX_MESSAGE)).ok
        client.send(b'{"verb": "plan", "number": 9, "rule": {' + b" " * MAX_MESSAGE)
        answer = parse_answer(client.recv(MAX_MESSAGE))
        assert (answer.ok, answer.code, answer.number) == (False, 2, 9)
        assert answer.error == "not understood: a message has at most 1,048,576 bytes"
        assert is_dropped(client)


def test_descriptors_that_nobody_announced_are_refused(address: str) -> None:
    with raw(address, HELLO) as client, open("/dev/null") as null:
        assert parse_answer(client.recv(MAX_MESSAGE)).ok
        socket.send_fds(client, [encode_request(Status())], [null.fileno()])
        assert "not both" in parse_answer(client.recv(MAX_MESSAGE)).error
        socket.send_fds(client, [encode_request(Status(), 4)], [null.fileno()] * 2)
        answer = parse_answer(client.recv(MAX_MESSAGE))
        assert (answer.error, answer.number) == ("not understood: a message brings one descriptor at most", 4)
        assert is_dropped(client)


@pytest.mark.parametrize("kind", ["pipe", "file", "unsealed"])
def test_lists_that_could_block_or_change_are_refused(address: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"")
    reader, writer = os.pipe()
    memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    plain = os.open(tmp_path / "list", os.O_RDONLY)
    try:
        with raw(address, HELLO) as client:
            assert parse_answer(client.recv(MAX_MESSAGE)).ok
            sent = {"pipe": reader, "file": plain, "unsealed": memory}[kind]
            socket.send_fds(client, [encode_request(Apply({}, 0, attached=True))], [sent])
            assert "the list is not" in parse_answer(client.recv(MAX_MESSAGE)).error
    finally:
        for descriptor in (reader, writer, memory, plain):
            os.close(descriptor)


def test_client_that_never_reads_is_dropped_and_blocks_nobody(address: str, bench: Bench) -> None:
    with raw(address, HELLO) as client:
        client.setblocking(False)
        end = time.monotonic() + 20
        gone = False
        closing = select.poll()
        closing.register(client, 0)  # POLLHUP alone: there are answers to read all the time
        while not gone and time.monotonic() < end:
            try:
                client.send(encode_request(Status()))
            except BlockingIOError:
                with bench.connect() as other:
                    rules_of(other)
                closing.poll(200)
            except (BrokenPipeError, ConnectionResetError):
                gone = True
        assert gone


def test_silent_and_numerous_clients_block_nobody(address: str, bench: Bench) -> None:
    clients = [raw(address) for _ in range(14)]
    try:
        with bench.connect() as other:
            assert len(rules_of(other)) == 1
    finally:
        for client in clients:
            client.close()


def test_random_messages_never_hurt(address: str) -> None:
    rng = random.Random(1)
    pieces = [
        "verb",
        "apply",
        "plan",
        "undo",
        "keep",
        "rule",
        "id",
        "ids",
        "x",
        None,
        1,
        -1,
        1e300,
        True,
        [],
        {},
        [[]],
    ]
    with raw(address, HELLO) as client:
        assert parse_answer(client.recv(MAX_MESSAGE)).ok
        for number in range(300):
            data = {str(rng.choice(pieces)): rng.choice(pieces) for _ in range(3)}
            data |= {"verb": rng.choice(["apply", "plan", "keep", "undo", "status"]), "number": number}
            client.send(json.dumps(data).encode())
            answer = parse_answer(client.recv(MAX_MESSAGE))
            assert (
                answer.ok == (data["verb"] == "status" and set(data) == {"verb", "number"}) or "ids" in data
            )
            assert answer.number == number
            assert not PYTHON.search(answer.error), answer.error


def test_socket_is_roots_alone(address: str) -> None:
    assert os.stat(address).st_mode & 0o777 == 0o600
    assert os.stat(address).st_uid == 0


REQUESTS: list[Request] = [
    Plan(WIRE),
    Apply(WIRE, 5),
    Keep("1", 600),
    Repair("1"),
    Why("77"),
    RuleRead("1"),
    Status(),
    ListChange("x", "create", 60, entries=("192.0.2.1",)),
    ListChange("x", "delete"),
    ListShow("x"),
    ListTest("x", "192.0.2.1"),
    ListRead("x", 0, 5),
    PolicyRead("history"),
    Survey(),
    Rules(),
    Connect(),
    Symbols(),
    Rescan(),
]


def mutated(rng: random.Random, value: object) -> object:
    """Change one place in a JSON value, or the whole of it."""
    other = rng.choice(
        [None, True, -1, 0, 2**70, 1.5, "", "x", "1", "\x00", "\ud800", [], [1], {}, {"x": []}]
    )
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice([*value, "surplus"])
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: mutated(rng, value.get(name))}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutated(rng, value[at]), *value[at + 1 :]]
    return other


@pytest.mark.matrix
@pytest.mark.parametrize("role", ["cli", "console"])
def test_requests_that_are_almost_right_are_answered_plainly(address: str, role: str, bench: Bench) -> None:
    rng = random.Random(int(os.environ.get("SEED", "1")))
    with raw(address, encode_request(Hello(role, "clone"))) as client:
        client.settimeout(60)
        assert parse_answer(client.recv(MAX_MESSAGE)).ok
        for number in range(1, 3_000):
            sample = json.loads(encode_request(rng.choice(REQUESTS)))
            envelope = {"verb": sample.pop("verb"), "number": number}
            almost = mutated(rng, sample)
            data = {**almost, **envelope} if isinstance(almost, dict) else {**sample, **envelope, "x": almost}
            client.send(json.dumps(data).encode())
            answer = parse_answer(received(client))
            assert answer.number == number
            assert answer.ok or not PYTHON.search(answer.error), (data, answer.error)
            assert answer.ok or answer.error
    with bench.connect() as cli:
        for rule_id in rules_of(cli).keys() - {"1"}:
            cli.request(Undo((rule_id,)))  # its trial may be over just now


def received(client: socket.socket) -> bytes:
    """Read one answer, and close what comes with it."""
    whole = b""
    while True:
        part, descriptors, _, _ = socket.recv_fds(client, MAX_MESSAGE, 9)
        for descriptor in descriptors:
            os.close(descriptor)
        if part[:1] not in (b"+", b"."):
            return part
        whole += part[1:]
        if part[:1] == b".":
            return whole
