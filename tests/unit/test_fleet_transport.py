"""The contract of a transport, of the one in memory and of the one over a real nats-server with TLS."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from unittest.mock import ANY

import pytest
from fleet_memory import Memory

from fwtop.fleet import founding, server
from fwtop.fleet.broker import Access, Broker
from fwtop.fleet.identity import NatsKey, user
from fwtop.fleet.transport import ADMITTED, JOINING, MAX_ANSWER, MAX_SUMMARY, WANTED
from fwtop.model.errors import FwtopError


class Real:
    """A nats-server on the loopback interface, and connections to it."""

    def __init__(self, directory: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = founding.ServerPlace("127.0.0.1", probe.getsockname()[1])
        self.directory = directory
        self.file = founding.found(
            directory / "fleet", "prod", [place], "ops ssh-ed25519 AAAA\n", store=directory / "store"
        )
        self.process = None

    async def start(self) -> None:
        self.process = server.start(self.directory / "fleet/server", self.directory / "log")
        leader = await self.controller()
        await leader.make_streams(1)
        await leader.close()

    async def controller(self) -> Broker:
        end = time.monotonic() + 20
        while True:
            try:
                return await Broker.connect(self.file.access)
            except FwtopError as error:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise AssertionError((self.directory / "log").read_text()[-2000:]) from error
                await asyncio.sleep(0.05)

    connect = controller

    async def as_node(self, name: str) -> Broker:
        key = NatsKey("U")
        jwt = user(NatsKey.of_seed(self.file.seeds["node"]), self.file.account, key.public, name)
        broker = await Broker.connect(Access(self.file.urls, self.file.authority, jwt, key.seed, name))
        broker.user = key.public
        return broker

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
async def real(tmp_path):
    made = Real(tmp_path)
    await made.start()
    yield made
    made.kill()


@pytest.fixture
async def connect(tmp_path, broker_kind):
    if broker_kind == "memory":
        made = Memory()
        yield made.connect
        return
    real = Real(tmp_path)
    await real.start()
    yield real.connect
    real.kill()


@pytest.fixture(params=["memory", "nats"])
def broker_kind(request):
    return request.param


async def taken(queue: asyncio.Queue, count: int = 1) -> list:
    async with asyncio.timeout(20):
        return [await queue.get() for _ in range(count)]


@contextlib.asynccontextmanager
async def parties(connect, count: int):
    made = [await connect() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


async def test_a_summary_reaches_who_follows_under_its_name(connect):
    async with parties(connect, 2) as (machine, observer):
        seen: asyncio.Queue = asyncio.Queue()
        await observer.follow(["web-1"], lambda *summary: seen.put_nowait(summary), print)
        await observer.read(WANTED)  # answered: the server knows the subscription by now
        await machine.publish("web-1", b"\x00summary")
        assert await taken(seen) == [("web-1", b"\x00summary")]
        with pytest.raises(FwtopError, match="nothing was sent"):
            await machine.publish("web-1", b"x" * (MAX_SUMMARY + 1))
        with pytest.raises(FwtopError):
            await machine.publish("web-1.>", b"x")


async def test_a_board_keeps_the_newest_of_each_name(connect):
    async with parties(connect, 2) as (leader, machine):
        assert await machine.read(WANTED) == {}
        heard: asyncio.Queue = asyncio.Queue()
        await machine.watch(WANTED, lambda *document: heard.put_nowait(document))
        await machine.read(WANTED)
        await leader.put(WANTED, "r1.document", b"one")
        await leader.put(WANTED, "r1.document", b"two")
        await leader.put(WANTED, "r1.started", b"three")
        assert await taken(heard, 3) == [
            ("r1.document", b"one"),
            ("r1.document", b"two"),
            ("r1.started", b"three"),
        ]
        found = await machine.read(WANTED)
        assert {name: entry.document for name, entry in found.items()} == {
            "r1.document": b"two", "r1.started": b"three",
        }  # fmt: skip
        assert found["r1.document"].version < found["r1.started"].version
        assert list(await machine.read(WANTED, "r1.started")) == ["r1.started"]
        assert await machine.read(JOINING) == {}


async def test_two_who_change_the_same_are_told(connect):
    async with parties(connect, 2) as (one, other):
        await one.put(WANTED, "machines", b"one", after=0)
        with pytest.raises(FwtopError) as refused:
            await other.put(WANTED, "machines", b"other", after=0)
        assert refused.value.reason == "changed"
        version = (await other.read(WANTED, "machines"))["machines"].version
        await other.put(WANTED, "machines", b"both", after=version)
        assert (await one.read(WANTED))["machines"].document == b"both"


async def test_a_document_expires(connect):
    async with parties(connect, 1) as (leader,):
        await leader.put(WANTED, "r1.document", b"short", seconds=1)
        await leader.put(WANTED, "r2.document", b"long")
        async with asyncio.timeout(20):
            while "r1.document" in await leader.read(WANTED):
                await asyncio.sleep(0.05)
        assert list(await leader.read(WANTED)) == ["r2.document"]


async def test_all_are_asked_and_who_is_silent_holds_up_nobody(connect):
    async with parties(connect, 4) as (leader, *machines):
        never = asyncio.Event()

        async def silent(_: bytes) -> bytes:
            await never.wait()
            return b""

        for number, machine in enumerate(machines[:2]):
            await machine.answer(lambda question, number=number: _said(question + b"%d" % number))
            await machine.read(WANTED)
        await machines[2].answer(silent)
        assert sorted([answer async for answer in leader.ask(b"how are you", 1.0)]) == [
            b"how are you0", b"how are you1",
        ]  # fmt: skip
        first = leader.ask(b"again", 20.0)
        assert (await anext(first)).startswith(b"again")
        await first.aclose()


async def _said(text: bytes) -> bytes:
    return text


async def test_nobody_answers_where_nobody_is(connect):
    async with parties(connect, 1) as (leader,):
        assert [answer async for answer in leader.ask(b"anybody", 0.3)] == []


async def test_a_killed_server_is_noticed_and_what_was_put_is_there_again(real):
    node, leader = await real.as_node("web-1"), await real.controller()
    await leader.put(WANTED, "r1.document", b"kept")
    real.kill()
    async with asyncio.timeout(20):
        await node.lost.wait()
        await leader.lost.wait()
    with pytest.raises(FwtopError, match="rules in force stay"):
        await leader.put(WANTED, "r1.document", b"not now")
    await real.start()
    again = await real.as_node("web-1")
    assert (await again.read(WANTED))["r1.document"].document == b"kept"
    await again.close()


async def test_a_machine_may_neither_publish_as_another_nor_want_anything(real):
    leader, node = await real.controller(), await real.as_node("web-1")
    seen: asyncio.Queue = asyncio.Queue()
    await leader.follow(["web-1", "web-2"], lambda *summary: seen.put_nowait(summary), print)
    await leader.read(WANTED)
    await node.publish("web-2", b"forged")
    await node.publish("web-1", b"own")
    assert await taken(seen) == [("web-1", b"own")]
    with pytest.raises(FwtopError):
        await node.put(WANTED, "r1.document", b"forged")
    with pytest.raises(FwtopError):
        await node.read(JOINING)
    assert any("ermissions" in said for said in node.complaints), node.complaints
    assert await leader.read(WANTED) == {}
    await node.close()
    await leader.close()


async def test_a_flooding_machine_is_named_and_heard_no_more_and_the_others_are(real):
    leader, web1, web2 = await real.controller(), await real.as_node("web-1"), await real.as_node("web-2")
    seen: asyncio.Queue = asyncio.Queue()
    flooding: asyncio.Queue = asyncio.Queue()
    await leader.follow(["web-1", "web-2"], lambda *summary: seen.put_nowait(summary), flooding.put_nowait)
    await leader.put(WANTED, "r1.document", b"x" * 10_000)
    for _ in range(200):  # a server answers to whatever subject a request names, as nobody's own word
        get = "$JS.API.DIRECT.GET.FLEET_WANTED"
        await web2._client.publish(get, b'{"multi_last":["fleet.wanted.>"]}', reply="fleet.summary.web-1")
    for _ in range(6_000):
        await web2.publish("web-2", b"x" * MAX_SUMMARY)
    assert await taken(flooding) == ["web-2"]
    heard = ""
    while heard != ("web-1", b"well"):
        await web1.publish("web-1", b"well")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while (heard := await seen.get()) != ("web-1", b"well"):
                    assert heard[0] == "web-1" or seen.qsize() < 400
    assert flooding.empty()
    assert await leader.loud() == {web2.user: (ANY, ANY)}
    await web2._client.publish("fleet.summary.web-2", b"x" * (MAX_ANSWER + 1))
    async with asyncio.timeout(20):
        await web2.lost.wait()
    await leader.close()
    await web1.close()


async def test_a_token_asks_to_join_under_its_own_id_only(real):
    token = founding.token(real.file, "", 2, 60)
    leader = await real.controller()
    await leader.put(ADMITTED, f"{token.id}.key", b"jwt")
    joining = await Broker.connect(Access(real.file.urls, token.authority, token.jwt, token.seed, token.id))
    await joining.put(JOINING, f"{token.id}.key", b"please")
    assert (await joining.read(ADMITTED, f"{token.id}.key"))[f"{token.id}.key"].document == b"jwt"
    for board, name in ((JOINING, "t2.key"), (WANTED, "r1.document")):
        with pytest.raises(FwtopError):
            await joining.put(board, name, b"please")
    assert list(await leader.read(JOINING)) == [f"{token.id}.key"]
    expired = founding.token(real.file, "", 2, -5)
    with pytest.raises(FwtopError, match="can't be used"):
        await Broker.connect(Access(real.file.urls, expired.authority, expired.jwt, expired.seed, expired.id))
    await joining.close()
    await leader.close()


async def test_a_removed_machine_is_cut_off_at_once_and_the_others_stay(real):
    node, other = await real.as_node("web-1"), await real.as_node("web-2")
    async with await Broker.connect(real.file.system_access()) as system:
        await system.renew_account(founding.account_jwt(real.file.seeds, {node.user: int(time.time())}))
    async with asyncio.timeout(20):
        await node.lost.wait()
    assert await other.read(WANTED) == {}
    await other.close()


async def test_a_server_of_another_authority_is_refused(real, tmp_path):
    other = founding.found(
        tmp_path / "other", "prod", [founding.ServerPlace("127.0.0.1", 1)], "", store=tmp_path
    )
    access = real.file.access
    foreign = Access(access.urls, other.authority, access.jwt, access.seed, access.name)
    with pytest.raises(FwtopError, match="certificate"):
        await Broker.connect(foreign)


def test_a_second_init_changes_nothing(tmp_path):
    places = [founding.ServerPlace("192.0.2.1")]
    founding.found(tmp_path, "prod", places, "")
    with pytest.raises(FwtopError, match="already"):
        founding.found(tmp_path, "prod", places, "")


async def test_each_verb_says_that_the_servers_are_lost(real):
    async def reply(question: bytes) -> bytes:
        return question

    broker = await real.controller()
    real.kill()
    async with asyncio.timeout(20):
        await broker.lost.wait()
    for verb in (
        broker.publish("web-1", b""), broker.follow(["web-1"], print, print), broker.read(WANTED),
        broker.watch(WANTED, print), broker.put(WANTED, "r1", b"x"), broker.answer(reply),
    ):  # fmt: skip
        with pytest.raises(FwtopError, match="rules in force stay"):
            await verb
