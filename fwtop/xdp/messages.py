"""Messages between the guardian and the XDP loader (`fwtop.xdp.loader`), the process that carries bcc.

A request travels as JSON in a memory file, because long lists don't fit a message; the file is the first
descriptor, the request's own ones follow. The reply is an `Answer` with descriptors. Both sides import this
module, so it must stay free of numpy and bcc.
"""

from __future__ import annotations

import os
import socket
from binascii import crc32
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.kernel import children
from fwtop.kernel.descriptors import close_all, closing
from fwtop.model.addresses.address import Prefix, of_ports
from fwtop.model.addresses.prefix_list import pack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.messages import MAX_MESSAGE, Answer, ProtocolError, encode_answer
from fwtop.model.rule import Rule, families_of
from fwtop.model.wire import of_json, of_plain, plain, to_json
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.xdp.maps import COMPILED_PREFIXES, COUNTED_PREFIXES

KEPT_SECONDS = 30.0  # that a loader waits for the rules that it has compiled to be installed
MAX_DESCRIPTORS = 250  # in one message; SCM_MAX_FD is 253
_HITS = "hits:"


class RequestedRule(Struct, frozen=True):
    """A rule and its slot. Long source lists become maps; then `rule` comes without its sources.

    The maps of a named list bear the list's key, another one after each change, and rules share them. Those
    of a rule's own sources are others after a change of these.
    """

    slot: int
    rule: Rule
    listed: bool  # the sources are in maps
    families: tuple[int, ...] = ()  # of the sources in maps
    report_hits: bool = False  # return the map of per-prefix counters
    counted: bool = True  # prefixes in maps have counters
    list_key: str = ""  # of a named list
    of_ports: bool = False  # whose entries have ports
    digest: str = ""  # of a rule's own sources

    @classmethod
    def of(cls, slot: int, rule: Rule, *, report_hits: bool = False, list_key: str = "") -> RequestedRule:
        """Move the sources of a long list out of the rule, and those of any named list."""
        digest = "" if list_key else f"v{crc32(pack_prefixes(rule.match.sources)):08x}"
        if len(rule.match.sources) <= COMPILED_PREFIXES and not list_key:
            return cls(slot, rule, listed=False, report_hits=report_hits, digest=digest)
        families = tuple(sorted(families_of(rule.match.sources)))
        short = replace(rule, match=replace(rule.match, sources=()))
        counted = len(rule.match.sources) <= COUNTED_PREFIXES
        ported = of_ports(rule.match.sources)
        return cls(slot, short, True, families, report_hits, counted, list_key, ported, digest)

    @property
    def number(self) -> int:
        """The rule's id as the maps hold it."""
        return int(self.rule.id)

    @property
    def key(self) -> str:
        """What the pins of its list and counters are named by."""
        return self.list_key or f"{self.number}{self.digest}"

    @property
    def at_tc(self) -> bool:
        """Whether the rule runs at tc ingress only."""
        return of(self.rule.kind).layer is Layer.TC


class Apply(Struct, frozen=True, tag_field="verb", tag="apply"):
    """Compile exactly these rules and attach them. Descriptors stay the sender's."""

    rules: tuple[RequestedRule, ...]
    allow: tuple[Prefix, ...]
    interfaces: tuple[str, ...]
    maps: dict[str, int] = field(default_factory=dict)  # shared maps that exist already, by name
    sources: dict[str, int] = field(default_factory=dict)  # memory files of long lists, by key


class Compile(Struct, frozen=True, tag_field="verb", tag="compile"):
    """Compile into the cache for an `Apply` that may follow."""

    rules: tuple[RequestedRule, ...]
    allow: tuple[Prefix, ...]
    at_tc: bool


class Open(Struct, frozen=True, tag_field="verb", tag="open"):
    """Report what is pinned and attached."""


class Clear(Struct, frozen=True, tag_field="verb", tag="clear"):
    """Detach all compiled rules and remove their pins."""


class Sweep(Struct, frozen=True, tag_field="verb", tag="sweep"):
    """Remove the pins of network namespaces that no longer exist."""


Request = Apply | Compile | Open | Clear | Sweep


class Attachment(Struct, frozen=True):
    """Where compiled rules are attached."""

    ifindex: int
    name: str
    mode: str  # NATIVE, GENERIC, TC or INGRESS of attach.py
    foreign: str = ""  # the XDP program that forced the rules to tc
    above: str = ""  # the VLAN or bond that was asked for, if it is another interface
    reason: str = ""  # why it is not native


class Loaded(Struct, frozen=True):
    """The loader's reply. The descriptors belong to whoever receives it."""

    attachments: tuple[Attachment, ...] = ()
    maps: dict[str, int] = field(default_factory=dict)  # shared maps by name
    hits: dict[str, int] = field(default_factory=dict)  # maps of per-prefix counters by rule id


def encode_request(request: Request) -> tuple[bytes, list[int]]:
    """Return a request as JSON and the descriptors that go with it, whose numbers in it mean nothing."""
    held = [*request.maps.values(), *request.sources.values()] if isinstance(request, Apply) else []
    return to_json(request), held


def decode_request(text: bytes, descriptors: Sequence[int]) -> Request:
    """Read what `encode_request` wrote; raises ProtocolError."""
    try:
        request: Request = of_json(Request, text)  # type: ignore[arg-type] # a union
        if not isinstance(request, Apply):
            return request
        named = iter(zip([*request.maps, *request.sources], descriptors, strict=True))
        maps = dict(islice(named, len(request.maps)))
        return replace(request, maps=maps, sources=dict(named))
    except ValueError as error:
        raise ProtocolError(f"not a request to the XDP loader: {error}") from None


def send_request(sock: socket.socket, request: Request) -> None:
    """Send a request with its descriptors; raises OSError."""
    text, descriptors = encode_request(request)
    with closing(os.memfd_create("fwtop-xdp", os.MFD_CLOEXEC)) as file:
        with open(file, "wb", closefd=False) as stream:
            stream.write(text)
        socket.send_fds(sock, [b"."], [file, *descriptors])


def receive_request(sock: socket.socket) -> Request:
    """Wait for a request; raises ProtocolError, OSError."""
    _, descriptors, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_DESCRIPTORS)
    if not descriptors:
        raise ProtocolError("the request's file is missing")
    with open(descriptors[0], "rb") as stream:
        stream.seek(0)
        return decode_request(stream.read(), descriptors[1:])


def send_reply(sock: socket.socket, reply: Loaded | Answer) -> None:
    """Send what was loaded, or an answer that says what failed; raises OSError."""
    if isinstance(reply, Answer):
        sock.send(encode_answer(reply))
        return
    named = reply.maps | {f"{_HITS}{rule_id}": item for rule_id, item in reply.hits.items()}
    attachments = plain(reply.attachments)
    answer = Answer(True, data={"fds": list(named), "attachments": attachments})
    socket.send_fds(sock, [encode_answer(answer)], list(named.values()))


def receive_reply(sock: socket.socket) -> Loaded:
    """Wait for the reply; raises FwtopError with the loader's own error, ProtocolError, OSError."""
    answer, descriptors = children.receive(sock)
    try:
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        named = dict(zip(answer.data["fds"], descriptors, strict=True))
        maps = {name: item for name, item in named.items() if not name.startswith(_HITS)}
        hits = {name.removeprefix(_HITS): named[name] for name in named if name.startswith(_HITS)}
        return Loaded(of_plain(tuple[Attachment, ...], answer.data["attachments"]), maps, hits)
    except (FwtopError, KeyError, ValueError, TypeError) as error:
        close_all(descriptors)
        if isinstance(error, FwtopError):
            raise
        raise ProtocolError("the XDP loader's reply is incomplete") from None
