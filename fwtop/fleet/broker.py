"""The transport over NATS: subjects, streams, and the connection of one party.

Summaries and questions are plain messages. A board is a stream that keeps the newest message of each subject:
who may read it asks for all of them at once ("direct get"), which needs no consumer, and hears new ones as
any subscriber does. TLS with the fleet's own authority; who connects proves it with a key (identity.py).

A connection that is lost is not mended here: `lost` is set, and its owner makes another, after a while drawn
at random. nats-py would do it in step with everybody else, and wait for a silent server to say goodbye.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Self

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, NoServersError

from fwtop.fleet.identity import NatsKey
from fwtop.fleet.transport import (
    ADMITTED,
    JOINING,
    MAX_DOCUMENT,
    MAX_SUMMARY,
    SOURCES,
    WANTED,
    Entry,
    changed,
    check_name,
    check_size,
)
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SECONDS = 3.0  # for an answer of the server
_CONNECT_SECONDS = 4.0
_AGAIN_SECONDS = 0.25
_PING_SECONDS = 3  # two unanswered: the server is gone
_ASK = "fleet.ask"
_STREAMS = {  # board → stream
    WANTED: "FLEET_WANTED",
    JOINING: "FLEET_JOINING",
    ADMITTED: "FLEET_ADMITTED",
    SOURCES: "FLEET_SOURCES",
}
_WEEK = 7 * 86_400
_STREAM_LIMITS: dict[str, dict[str, Any]] = {
    WANTED: {"max_bytes": 256 << 20},
    JOINING: {"max_bytes": 16 << 20, "max_age": _WEEK * 10**9, "max_msg_size": 8 << 10},
    ADMITTED: {"max_bytes": 64 << 20, "max_age": _WEEK * 10**9, "max_msg_size": 16 << 10},
    SOURCES: {"max_bytes": 512 << 20},
}
_ELECTION_SECONDS = 12.0  # three servers that lost one, or only start, take up to 9 s to agree who leads
_NOT_YET = {10005, 10008}  # errors: too few servers; nobody leads
_WRONG_SEQUENCE = 10071  # error: the newest of this subject is another
_NO_MESSAGE, _END = "404", "204"  # status of a direct get
_PROBE = "FLEET_PROBE"  # a stream that is there for a moment
_HEALTH_SECONDS = 1.0
_BYTES, _MESSAGES = (4 << 20, 8 << 10), (1_000, 8)  # of a machine: at once, and each second
_SUMMARIES, _SUMMARIES_SECONDS = 128, 32.0  # of a machine at once; faster than that is a flood
_MAKE_ROOM = "make room where it stores (by default /var/lib/fwtop-broker)"
_RESTART = "on it, systemctl restart fwtop-broker"


def _close(self: TcpTransport) -> None:
    """Drop the connection at once: TLS waits half a minute for a silent peer to close it as well."""
    if self._io_writer is not None:
        self._io_writer.transport.abort()


TcpTransport.close = _close  # type: ignore[method-assign]


class Access(Struct, frozen=True):
    """How a party connects, and as whom."""

    urls: tuple[str, ...]  # tls://…: TLS from the first byte; nats://…: after the server's greeting, as usual
    authority: str  # PEM: whose certificates the servers have
    jwt: str
    seed: str
    name: str  # the JWT's: answers come to its inbox
    system: Callable[[], Access] | None = None  # how the servers are asked how they fare, by who may


def node_rights() -> tuple[list[str], list[str]]:
    """Return what a machine may publish and subscribe; the second line of defence, as all is signed."""
    gets = [f"$JS.API.DIRECT.GET.{_STREAMS[board]}" for board in (WANTED, SOURCES)]
    return ["fleet.summary.{{name()}}", *gets], [f"fleet.{WANTED}.>", _ASK, "_INBOX.{{name()}}.>"]


def joining_rights() -> tuple[list[str], list[str]]:
    """Return those of a token: ask to join under its id, and read who was admitted."""
    get = f"$JS.API.DIRECT.GET.{_STREAMS[ADMITTED]}"
    return [f"fleet.{JOINING}.{{{{name()}}}}.>", get], ["_INBOX.{{name()}}.>"]


class Broker:
    """A party's connection to the fleet's NATS servers."""

    def __init__(self, client: Client, lost: asyncio.Event) -> None:
        """Use `connect`."""
        self.lost = lost
        self.complaints: list[str] = []  # of the server: rights that this party lacks
        self._client = client
        self._access: Access | None = None
        self._url = ""

    @classmethod
    async def connect(cls, access: Access, *, first: str = "") -> Broker:
        """Connect to any of the servers, one `first`; raises FwtopError, which says what failed."""
        failed: list[str] = []
        drawn = random.sample(access.urls, len(access.urls))
        for url in sorted(drawn, key=lambda url: url != first):  # one that is parted takes its time
            broker = cls(Client(), asyncio.Event())
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await broker._open(access, url)
            except (OSError, TimeoutError, NatsError) as error:
                failed.append(f"{url}: {broker._why(error)}")
                transport: Any = broker._client._transport
                if transport is not None:
                    transport.close()
            else:
                return broker
        raise _unavailable("; ".join(failed))

    async def _open(self, access: Access, url: str) -> None:
        key, self._access, self._url = NatsKey.of_seed(access.seed), access, url

        async def is_lost() -> None:
            self.lost.set()

        async def complained(error: Exception) -> None:
            if said := safe_text(error, limit=200):  # of a deadline there is none
                self.complaints = [*self.complaints, said][-8:]

        await self._client.connect(
            url,
            tls=_context(access.authority),
            tls_handshake_first=(first := url.startswith("tls:")),
            name=access.name,
            inbox_prefix=f"_INBOX.{access.name}",
            user_jwt_cb=lambda: self._paper(access, is_tls=first),
            signature_cb=lambda nonce: base64.b64encode(key.sign(nonce.encode())),
            allow_reconnect=False,
            connect_timeout=2,
            reconnect_time_wait=0,
            max_reconnect_attempts=1,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            error_cb=complained,
            closed_cb=is_lost,
        )

    def _paper(self, access: Access, *, is_tls: bool) -> bytearray:
        """Return with what it connects, over TLS only: a server that greets before could do without."""
        if not (is_tls or self._client._server_info.get("tls_required")):
            raise NatsError("the server does without TLS")
        return bytearray(access.jwt.encode())

    def _why(self, error: BaseException) -> str:
        """Say why something failed: the server's last complaint tells more than that it did not answer."""
        said = "" if isinstance(error, TimeoutError | NoServersError) else str(error) or type(error).__name__
        return said or (self.complaints[-1] if self.complaints else "no answer")

    async def publish(self, name: str, summary: bytes) -> None:
        """See Transport."""
        check_size(summary, MAX_SUMMARY)
        await self._send(f"fleet.summary.{check_name(name)}", summary)

    async def follow(
        self, names: Iterable[str], take: Callable[[str, bytes], None], flooded: Callable[[str], None]
    ) -> None:
        """See Transport."""
        for name in names:
            await self._follow(name, take, flooded)

    async def _follow(
        self, name: str, take: Callable[[str, bytes], None], flooded: Callable[[str], None]
    ) -> None:
        """Have a server send so many summaries of a machine and no more; others if that took its time."""
        began, count, answers = time.monotonic(), 0, 0

        async def taken(message: Msg) -> None:
            nonlocal count, answers
            count, answers = count + 1, answers + bool(message.headers)
            take(name, message.data)
            if count < _SUMMARIES:
                return
            if answers > _SUMMARIES / 2:  # of the server, which anybody can have sent here: not this machine
                await asyncio.sleep(_AGAIN_SECONDS)
            elif time.monotonic() - began < _SUMMARIES_SECONDS:
                flooded(name)
                return
            await self._follow(name, take, flooded)
            await subscription.unsubscribe()

        with self._lost_is_said():
            subscription = await self._client.subscribe(f"fleet.summary.{check_name(name)}", cb=taken)
            # The server's count alone: nats-py drops what waits once its own has ended.
            await self._client._send_unsubscribe(subscription._id, _SUMMARIES)

    async def read(self, board: str, name: str = "") -> Mapping[str, Entry]:
        """See Transport; asked twice, as a server that is parted may be asked in vain."""
        try:
            return await self._read(board, name)
        except FwtopError:
            if self.lost.is_set() or self.complaints:
                raise
            return await self._read(board, name)

    async def _read(self, board: str, name: str) -> Mapping[str, Entry]:
        prefix = f"fleet.{board}."
        wanted = json.dumps({"multi_last": [prefix + (check_name(name) if name else ">")]}).encode()
        found: dict[str, Entry] = {}
        async for message in self._request(f"$JS.API.DIRECT.GET.{_STREAMS[board]}", wanted, _SECONDS):
            headers = message.headers or {}
            match headers.get("Status", ""):
                case "":
                    subject = headers["Nats-Subject"].removeprefix(prefix)
                    found[subject] = Entry(message.data, int(headers["Nats-Sequence"]))
                case status if status in (_NO_MESSAGE, _END):
                    return found
                case status:
                    raise _unavailable(f"{headers.get('Description', 'refused')} ({status})")
        raise _unavailable(self._why(TimeoutError()))

    async def watch(self, board: str, take: Callable[[str, bytes], None]) -> None:
        """See Transport."""

        async def taken(message: Msg) -> None:
            take(message.subject.split(".", 2)[2], message.data)

        with self._lost_is_said():
            await self._client.subscribe(f"fleet.{board}.>", cb=taken)

    async def put(
        self, board: str, name: str, document: bytes, *, after: int | None = None, seconds: float = 0
    ) -> None:
        """See Transport."""
        check_size(document, MAX_DOCUMENT)
        # By its id the servers know what is sent again because the answer was lost.
        headers = {"Nats-Msg-Id": os.urandom(12).hex()}
        headers |= {} if after is None else {"Nats-Expected-Last-Subject-Sequence": str(after)}
        headers |= {"Nats-TTL": f"{max(1, round(seconds))}s"} if seconds else {}
        subject = f"fleet.{board}.{check_name(name)}"
        answer = await self._answered(subject, document, headers, _ELECTION_SECONDS)
        error = answer.get("error")
        if error and error.get("err_code") == _WRONG_SEQUENCE:
            raise changed()
        if error:
            raise _unavailable(f"{error.get('description')}")

    async def ask(self, question: bytes, seconds: float) -> AsyncIterator[bytes]:
        """See Transport."""
        async for message in self._request(_ASK, question, seconds):
            if not (message.headers or {}).get("Status"):  # the server says so if nobody listens
                yield message.data

    async def answer(self, reply: Callable[[bytes], Awaitable[bytes]]) -> None:
        """See Transport."""

        async def answered(message: Msg) -> None:
            if message.reply.startswith("_INBOX."):
                await self._send(message.reply, await reply(message.data))

        with self._lost_is_said():
            await self._client.subscribe(_ASK, cb=answered, pending_msgs_limit=16)

    async def make_streams(self, replicas: int) -> None:
        """Make the boards' streams where they are missing, and bring the others to what they should be."""
        for board, stream in _STREAMS.items():
            about = {
                "name": stream,
                "subjects": [f"fleet.{board}.>"],
                "num_replicas": replicas,
                "max_msgs_per_subject": 1,
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "allow_direct": True,
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": 0,
                **_STREAM_LIMITS[board],
            }
            text = json.dumps(about).encode()
            create = f"$JS.API.STREAM.CREATE.{stream}"
            answer = await self._answered(create, text, seconds=_ELECTION_SECONDS)
            if answer.get("error", {}).get("err_code") == _NAME_IN_USE:
                answer = await self._answered(f"$JS.API.STREAM.UPDATE.{stream}", text)
            if error := answer.get("error"):
                raise _unavailable(f"stream {stream}: {error.get('description')}")

    async def renew_account(self, jwt: str) -> None:
        """Give the servers the account's paper anew, as a user of the system account; raises FwtopError."""
        answer = await self._answered("$SYS.REQ.CLAIMS.UPDATE", jwt.encode())
        if error := answer.get("error"):
            raise _unavailable(f"{error.get('description')}")

    async def streams(self) -> dict[str, dict[str, Any]]:
        """Return what the servers say of each board's stream; {} for one that is missing."""
        return {
            board: await self._answered(f"$JS.API.STREAM.INFO.{stream}", b"", seconds=_SECONDS)
            for board, stream in _STREAMS.items()
        }

    async def check_room(self, replicas: int = 1) -> None:
        """Raise FwtopError unless a stream of so many replicas can be made now: it is made, and removed.

        A server that lacks room for what is put there answers nothing, and takes nothing more until it is
        started again; that it lacks room for a stream it says, and goes on.
        """
        await self._check_writes()
        about = {"name": _PROBE, "subjects": ["fleet.probe"], "num_replicas": replicas, "max_bytes": 1 << 12}
        create = f"$JS.API.STREAM.CREATE.{_PROBE}"
        answer = await self._answered(create, json.dumps(about).encode(), seconds=_ELECTION_SECONDS)
        await self._answered(f"$JS.API.STREAM.DELETE.{_PROBE}", b"")
        if error := answer.get("error"):
            raise _unavailable(f"no room on a disk ({error.get('description')}): {_MAKE_ROOM}")

    async def health(self) -> dict[str, str]:
        """Return who answers, and what each says is wrong with it; {} where this party may not ask."""
        return {name: one.get("error", "") for name, one in (await self._of_servers("HEALTHZ")).items()}

    async def configured(self) -> dict[str, dict[str, Any]]:
        """Return what each server says of itself and its configuration; {} where this party may not ask."""
        return await self._of_servers("VARZ")

    @property
    def told(self) -> dict[str, Any]:
        """What the server tells any user, in the words of `configured`."""
        transport: Any = self._client._transport
        ends = ssl.cert_time_to_seconds(transport._io_writer.get_extra_info("peercert")["notAfter"])
        told = {"version": self._client._server_info["version"]}
        return told | {"tls_cert_not_after": datetime.fromtimestamp(ends, UTC).isoformat()}

    async def may_publish(self, name: str) -> bool:
        """Try whether the server lets this party publish a summary under a name."""
        complaints = self.complaints
        await self.publish(name, b"")
        await self.read(WANTED, name)  # the server complains of what came before it answers
        return self.complaints is complaints

    async def account_jwt(self, account: str) -> str:
        """Return an account's paper as the servers have it, as a user of the system account."""
        subject = f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"
        async with contextlib.aclosing(self._request(subject, b"", _SECONDS)) as answers:
            async for message in answers:
                return message.data.decode()
        raise _unavailable(self._why(TimeoutError()))

    async def loud(self) -> dict[str, tuple[int, float]]:
        """Return who sent far more than any machine does, by its key: bytes, and over how many seconds."""
        found: dict[str, tuple[int, float]] = {}
        for sort in ("bytes_from", "msgs_from"):
            for told in (await self._of_servers("CONNZ", auth=True, sort=sort, limit=32)).values():
                for one in told["connections"]:
                    began, now = datetime.fromisoformat(one["start"]), datetime.fromisoformat(told["now"])
                    seconds = (now - began).total_seconds()
                    most_bytes, most = (about[0] + about[1] * seconds for about in (_BYTES, _MESSAGES))
                    if one["in_bytes"] > most_bytes or one["in_msgs"] > most:
                        found[one["authorized_user"]] = (one["in_bytes"], seconds)
        return found

    async def _of_servers(self, what: str, **question: object) -> dict[str, dict[str, Any]]:
        """Return what each server tells of itself, by its name; {} where this party may not ask."""
        if self._access is None or self._access.system is None:
            return {}
        told: dict[str, dict[str, Any]] = {}
        asked = json.dumps(question).encode()
        async with await Broker.connect(self._access.system(), first=self._url) as system:
            answers = system._request(f"$SYS.REQ.SERVER.PING.{what}", asked, _HEALTH_SECONDS)
            async with contextlib.aclosing(answers):
                async for message in answers:
                    answer = json.loads(message.data)
                    told[safe_text(answer["server"]["name"], limit=80)] = answer["data"]
                    if len(told) == len(self._access.urls):
                        break
        return told

    @property
    def server(self) -> str:
        """Return the address of the server."""
        url = self._client.connected_url
        return url.netloc if url else ""

    async def close(self) -> None:
        """See Transport."""
        if not self._client.is_closed:
            with contextlib.suppress(OSError, NatsError):  # it ended by itself meanwhile
                await self._client.close()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the connection."""
        await self.close()

    async def _send(self, subject: str, data: bytes) -> None:
        with self._lost_is_said():
            await self._client.publish(subject, data)

    @contextlib.contextmanager
    def _lost_is_said(self) -> Iterator[None]:
        """Have what goes wrong with the connection raise FwtopError."""
        try:
            yield
        except (OSError, NatsError) as error:
            raise _unavailable(self._why(error)) from None

    async def _answered(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, seconds: float = 0
    ) -> dict[str, Any]:
        """Return the server's answer, or its error as it writes them; ask for so long while nobody leads."""
        end, complaints = time.monotonic() + seconds, self.complaints
        while True:
            try:
                message = await self._client.request(subject, data, timeout=_SECONDS, headers=headers)
                answer: dict[str, Any] = json.loads(message.data)
            except (OSError, TimeoutError, NatsError, ValueError) as error:
                answers = not isinstance(error, TimeoutError | NoRespondersError)
                answers = answers or self.complaints is not complaints
                if answers or self.lost.is_set() or time.monotonic() > end:
                    raise _unavailable(self._why(error)) from None
                await self._check_writes()
            else:
                not_yet = answer.get("error", {}).get("err_code") in _NOT_YET
                if not not_yet or time.monotonic() > end:
                    return answer
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _check_writes(self) -> None:
        """Raise FwtopError if most servers say that they take nothing any more: all would wait in vain."""
        try:
            said = [line for line in ailments(await self.health()) if _RESTART in line]
        except FwtopError:
            return
        if self._access is not None and len(said) * 2 > len(self._access.urls):
            raise _unavailable("; ".join(said))

    async def _request(self, subject: str, data: bytes, seconds: float) -> AsyncGenerator[Msg]:
        """Yield the messages that answer a request, for so long."""
        end, inbox = time.monotonic() + seconds, self._client.new_inbox()
        with self._lost_is_said():
            answers = await self._client.subscribe(inbox)
            try:
                await self._client.publish(subject, data, reply=inbox)
                while (left := end - time.monotonic()) > 0 and not self.lost.is_set():
                    yield await answers.next_msg(timeout=left)
            except TimeoutError:
                return
            finally:
                if not self._client.is_closed:
                    await answers.unsubscribe()


_NAME_IN_USE = 10058  # error: this stream is there, and is another


def ailments(health: Mapping[str, str]) -> list[str]:
    """Return what is wrong with servers, a line each."""
    return [f"the server {name}{_ailment(error)}" for name, error in sorted(health.items()) if error]


def _ailment(said: str) -> str:
    """Return what a server says is wrong with it, with what to do where one of its writes failed."""
    _, failed, why = said.partition("write error: ")
    if failed:  # for good: it keeps the error until it is started again
        why = safe_text(why.rpartition(": ")[2], limit=80)
        return f" could not write ({why}), and takes nothing any more: {_MAKE_ROOM}, then {_RESTART}"
    return f": {safe_text(said, limit=200)}"


def _context(authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _unavailable(why: str) -> FwtopError:
    line = f"the fleet's servers can't be used: {safe_text(why, limit=400)}; rules in force stay"
    return FwtopError(line, reason="unavailable", retryable=True)
