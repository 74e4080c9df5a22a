"""Joining: keys, tokens, and who is admitted; summaries that fit; what is wanted of a machine."""

import time

import pytest
from fleet_memory import Memory
from msgspec.structs import replace

from fwtop.fleet import founding, joining, register
from fwtop.fleet.document import Action, Confirmation, Document, Sealed, encode
from fwtop.fleet.identity import NatsKey
from fwtop.fleet.keys import JOINING as SIGNED
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.summary import Attack, Rollout, Summary, fitting, read_summary, sealed_summary
from fwtop.fleet.transport import JOINING, MAX_SUMMARY
from fwtop.fleet.wanted import CONFIRMED, DOCUMENT, UNDO, Started, Wanted, encoded
from fwtop.model.errors import FwtopError
from fwtop.model.wire import to_json

URLS = ("tls://192.0.2.1:4222",)


@pytest.fixture
def file(tmp_path):
    return founding.found(tmp_path, "prod", [founding.ServerPlace("192.0.2.1")], "", store=tmp_path)


def asking(file, name, machines=2, labels=("web",)):
    token = founding.token(file, "", machines, 60)
    return founding.Token.of(token.text), joining.new_node(token, URLS, name, labels)


async def test_a_machine_asks_and_a_person_admits_it(file):
    transport = await Memory().connect()
    token, node = asking(file, "web-1")
    assert await joining.ask(transport, token, node, 0) is None
    known = await register.read(transport, "prod", MachineKey(file.registrar))
    [waiting] = await joining.pending(transport, file, known)
    assert (waiting.request.name, waiting.request.labels, waiting.why_not) == ("web-1", ("web",), "")
    assert await joining.admit(transport, file, ["web-1"]) == ["web-1"]
    admitted = await joining.ask(transport, token, node, 0)
    assert admitted.access.name == "web-1"
    known = await register.read(transport, "prod", MachineKey(file.registrar))
    assert known.machines["web-1"].key == MachineKey(node.key).public
    assert known.machines["web-1"].user == NatsKey.of_seed(node.seed).public
    assert await joining.pending(transport, file, known) == []


async def test_who_was_removed_does_not_wait_again(file):
    transport = await Memory().connect()
    token, node = asking(file, "web-1")
    await joining.ask(transport, token, node, 0)
    await joining.admit(transport, file, [])
    registrar = MachineKey(file.registrar)
    known = await register.read(transport, "prod", registrar)
    await register.write(transport, known.without(["web-1"]), registrar)
    known = await register.read(transport, "prod", registrar)
    assert (known.machines, await joining.pending(transport, file, known)) == ({}, [])
    assert await joining.admit(transport, file, []) == []


async def test_a_name_that_is_taken_needs_a_word_and_a_token_is_used_up(file):
    transport = await Memory().connect()
    token, node = asking(file, "web-1", machines=1)
    await joining.ask(transport, token, node, 0)
    await joining.admit(transport, file, [])
    again = joining.new_node(token, URLS, "web-1", ())
    await joining.ask(transport, token, again, 0)
    with pytest.raises(FwtopError, match="another key"):
        await joining.admit(transport, file, ["web-1"])
    assert await joining.admit(transport, file, []) == []  # all that can be: nobody
    with pytest.raises(FwtopError, match="used up"):
        await joining.admit(transport, file, ["web-1"], instead=True)
    other, node = asking(file, "web-1")
    await joining.ask(transport, other, node, 0)
    assert await joining.admit(transport, file, ["web-1"], instead=True) == ["web-1"]
    with pytest.raises(FwtopError, match="nobody of this name"):
        await joining.admit(transport, file, ["web-7"])


async def test_requests_that_make_no_sense_wait_for_nobody(file):
    transport = await Memory().connect()
    token, node = asking(file, "web-1")
    key, name = MachineKey(node.key), NatsKey.of_seed(node.seed).public
    request = joining.Request("prod", "web-1", (), name, key.public, time.time())
    wrong = {
        "U1": key.seal(SIGNED, to_json(request)),  # lies under another's name
        name: MachineKey().seal(SIGNED, to_json(request)),  # not signed by the key that it names
        "U2": b"garbage",
        "U3": key.seal(SIGNED, to_json(replace(request, user="U3", name="web.>"))),
    }
    for place, message in wrong.items():
        await transport.put(JOINING, f"{token.id}.{place}", message)
    assert await joining.pending(transport, file, register.Register("prod")) == []


def test_a_token_that_is_none_is_refused():
    for text in ("", "x", "e30"):
        with pytest.raises(FwtopError, match="no token"):
            founding.Token.of(text)


def summary(**given) -> Summary:
    return Summary(**{"fleet": "prod", "name": "web-1", "instance": "i", "number": 1, "at": 1.0, **given})


def test_a_summary_of_any_machine_fits():
    key = MachineKey()
    long = summary(
        attacks=tuple(Attack("kind" * 9, "title" * 20, "target" * 20, "attack", 1.0) for _ in range(64)),
        rollouts=tuple(Rollout(f"r{number}" * 8, "reverted", why="why" * 60) for number in range(64)),
        trouble=("t" * 900,) * 40,
        labels=("label" * 12,) * 64,
    )
    message = sealed_summary(long, key)
    assert len(message) <= MAX_SUMMARY
    read = read_summary(message, "web-1", key.public)
    assert read.rollouts
    assert read.rollouts[-1].rollout == "r63" * 8
    small = summary(attacks=(Attack("k", "t", "x", "attack", 1.0),))
    assert fitting(small, MAX_SUMMARY) == small


def test_texts_of_a_machine_are_sanitised_and_names_are_its_own():
    key = MachineKey()
    message = sealed_summary(summary(verdict="CALM\x1b[2J", trouble=("a\nb",)), key)
    read = read_summary(message, "web-1", key.public)
    assert "\x1b" not in read.verdict
    assert "\n" not in read.trouble[0]
    with pytest.raises(FwtopError, match="another machine's name"):
        read_summary(message, "web-2", key.public)
    with pytest.raises(FwtopError, match="signature"):
        read_summary(message, "web-1", MachineKey().public)
    with pytest.raises(FwtopError, match="signature"):
        read_summary(message[:100] + b"X" + message[101:], "web-1", key.public)


def sealed(action: Action = Action.RULES, rollout: str = "r1", revision: int = 1) -> bytes:
    now = time.time()
    rules = ({},) if action is Action.RULES else ()
    made = Document(
        fleet="prod", revision=revision, rollout=rollout, action=action, on=("web",), issued=now,
        not_after=now + 60, rules=rules,
    )  # fmt: skip
    return encoded(Sealed(encode(made).decode(), ("s",)))


def confirmed(action: Action, number: int) -> bytes:
    made = Confirmation(fleet="prod", rollout="r1", document="d", action=action, number=number)
    return encoded(Sealed(encode(made).decode(), ("s",)))


def kinds(wanted: Wanted, machine: str = "web-1", *labels: str) -> list[tuple[str, str]]:
    return [(step.rollout, step.kind) for step in wanted.steps(machine, frozenset(labels or ("web",)))]


def test_a_machine_waits_for_its_turn():
    wanted = Wanted()
    wanted.take("r1.document", sealed())
    assert kinds(wanted) == []
    wanted.take("r1.started", encoded(Started(1, ("web-2",))))
    assert (kinds(wanted), kinds(wanted, "web-2")) == ([], [("r1", DOCUMENT)])
    wanted.take("r1.started", encoded(Started(2, ("web-2", "web-1"))))
    wanted.take("r1.started", encoded(Started(1, ())))  # older: late, or replayed
    assert kinds(wanted) == [("r1", DOCUMENT)]
    wanted.take("r1.confirmed", confirmed(Action.RENEW, 1))
    assert kinds(wanted) == [("r1", DOCUMENT), ("r1", CONFIRMED)]


def test_who_comes_late_gets_what_was_kept_for_all_and_nothing_that_was_undone():
    wanted = Wanted()
    wanted.take("r1.document", sealed())
    wanted.take("r1.started", encoded(Started(2, ("web-2",), everyone=True)))
    wanted.take("r1.confirmed", confirmed(Action.KEEP, 3))
    assert kinds(wanted) == [("r1", DOCUMENT), ("r1", CONFIRMED)]
    assert kinds(wanted, "db-1", "db") == []
    wanted.take("r1.confirmed", confirmed(Action.UNDO, 4))
    wanted.take("r1.confirmed", confirmed(Action.KEEP, 3))
    assert kinds(wanted) == [("r1", CONFIRMED)]  # where it is, it ends; it begins nowhere
    wanted.take("r1.undo", sealed(Action.UNDO, revision=2))
    assert kinds(wanted)[-1] == ("r1", UNDO)


def test_roll_outs_come_in_the_order_of_their_revisions_and_nonsense_does_not():
    wanted = Wanted()
    for name, revision in (("r2", 7), ("r1", 9)):
        wanted.take(f"{name}.document", sealed(rollout=name, revision=revision))
        wanted.take(f"{name}.started", encoded(Started(1, ("web-1",))))
    for name in ("r3.document", "r1.started", "r1.confirmed", "machines", "r1.what"):
        wanted.take(name, b"\x00{")
    assert kinds(wanted) == [("r2", DOCUMENT), ("r1", DOCUMENT)]
    wanted.take("r2.undo", sealed(Action.UNDO, "r2", 12))
    assert kinds(wanted) == [("r1", DOCUMENT), ("r2", UNDO)]  # r1 would be refused behind it
    wanted.replace({"r1.document": sealed(rollout="r1", revision=9)})
    assert kinds(wanted) == [("r1", DOCUMENT)]
