"""Lists of sources on their way to machines: whole, as they were signed, or not at all."""

import asyncio
import contextlib
import mmap
import os
from collections.abc import Sequence

import pytest
from fleet_memory import Memory, MemoryTransport

from fwtop.fleet import lists
from fwtop.fleet.document import Action, Document, Refusal, Sealed, Sources, encode
from fwtop.fleet.lists import FETCHING, Lists, detached
from fwtop.fleet.transport import MAX_DOCUMENT, SOURCES
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import read_bundle
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule


def rule(count: int, first: int = 0x2C000000) -> Rule:
    sources = tuple(Prefix(4, first + number, 32) for number in range(count))
    return Rule("", Kind.IPSET, Match(sources=sources), "block", 600)


def sealed(about: Sources) -> Sealed:
    made = Document(
        schema=2, fleet="prod", revision=1, rollout="r1", action=Action.RULES, on=("web",), issued=1.0,
        not_after=2.0, rules=({},), sources=about,
    )  # fmt: skip
    return Sealed(encode(made).decode(), ())


def bundled(rules: Sequence[Rule]) -> tuple[mmap.mmap, Sources]:
    bare, content, about = detached(rules)
    assert content is not None
    assert about is not None
    assert not any(len(one.match.sources) for one in bare)
    return content, about


def is_open(inode: int) -> bool:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.fstat(int(name)).st_ino)
    return inode in found


async def fetched(held: Lists, about: Sources, transport: MemoryTransport) -> int | None:
    while True:
        try:
            return held.of(sealed(about), transport)
        except FwtopError as error:
            if error.reason != FETCHING:
                raise
        await asyncio.sleep(0)


def test_what_fits_into_a_document_stays_there():
    given = [rule(5_000)]
    assert detached(given) == (given, None, None)


async def test_lists_arrive_piece_by_piece_and_once():
    rules = [rule(200_000), rule(7, 0x50000000)]
    content, about = bundled(rules)
    assert (about.size > MAX_DOCUMENT, about.entries) == (True, 200_007)
    transport, sent = await Memory().connect(), []
    await lists.send(transport, content, about, 60.0, sent.append)
    assert sent == [MAX_DOCUMENT, about.size]
    held = Lists()
    descriptor = await fetched(held, about, transport)
    assert descriptor is not None
    found = read_bundle(descriptor)
    assert {name: tuple(entries) for name, entries in found.items()} == {
        str(number): one.match.sources for number, one in enumerate(rules)
    }
    await transport.close()
    assert held.of(sealed(about), transport) == descriptor
    there = os.fstat(descriptor).st_ino
    for first in (1, 2):  # others take its place: what a node holds is bounded
        others, named = bundled([rule(6_000, first << 24)])
        other = await Memory().connect()
        await lists.send(other, others, named, 60.0, sent.append)
        await fetched(held, named, other)
    assert not is_open(there)


@pytest.mark.parametrize("wrong", [b"", b"x", None])
async def test_what_is_not_what_was_signed_is_refused_and_fetched_anew(wrong: bytes | None):
    content, about = bundled([rule(200_000)])
    broker = Memory()
    transport = await broker.connect()
    await lists.send(transport, content, about, 60.0, lambda _: None)
    name = f"{about.sha256}.1"
    good = broker.boards[SOURCES][name].document
    if wrong is None:
        del broker.boards[SOURCES][name]
    else:
        await transport.put(SOURCES, name, good[: -len(wrong)] + wrong if wrong else b"")
    held = Lists()
    with pytest.raises(FwtopError, match="nothing was changed") as refused:
        await fetched(held, about, transport)
    assert (refused.value.reason, refused.value.retryable) == (Refusal.SOURCES, True)
    await transport.put(SOURCES, name, good)
    assert await fetched(held, about, transport) is not None


def test_too_many_entries_go_nowhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lists, "MAX_SOURCES", 6_000)
    with pytest.raises(FwtopError, match="at most 6,000"):
        detached([rule(6_001)])
