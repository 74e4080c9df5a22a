"""The NFLOG codec on constructed messages, and over a real socket pair that overflows."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from fwtop.kernel import netlink
from fwtop.live.nflog import LoggedAccepted, NflogReader, parse_datagram
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import Hook
from fwtop.observe.messages import DATA_BYTES

PACKET = 0x0400


def packet(sequence: int, payload: bytes, ifindex: int = 3) -> bytes:
    body = struct.pack("!BBH", 2, 0, 0xF700)
    body += netlink.attribute(1, struct.pack("!HBB", 0x0800, 1, 0))
    body += netlink.attribute(4, struct.pack("!I", ifindex))
    body += netlink.attribute(9, payload)
    body += netlink.attribute(12, struct.pack("!I", sequence))
    return netlink.message(PACKET, 0, body).ljust(4)


def padded(*messages: bytes) -> bytes:
    return b"".join(message.ljust(-(-len(message) // 4) * 4, b"\0") for message in messages)


def udp(dport: int, payload: bytes = b"hello", total: int | None = None) -> bytes:
    size = 28 + len(payload) if total is None else total
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, size, 1, 0, 64, 17, 0, bytes([10, 0, 0, 2]), bytes([10, 0, 0, 1])
    )
    return header + struct.pack("!HHHH", 1000, dport, size - 20, 0) + payload


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, NflogReader]]:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    reader = NflogReader(ours.detach())
    yield theirs, reader
    theirs.close()
    reader.close()


def test_a_datagram_holds_several_packets_and_other_messages() -> None:
    data = padded(packet(0, udp(53)), netlink.message(2, 0, bytes(4)), packet(1, udp(54), ifindex=9))
    assert [(sequence, ifindex) for sequence, ifindex, _ in parse_datagram(data)] == [(0, 3), (1, 9)]


@pytest.mark.parametrize("cut", range(0, 100, 7))
def test_a_datagram_that_is_cut_short_never_raises(cut: int) -> None:
    data = padded(packet(0, udp(53)), packet(1, udp(54)))
    assert len(parse_datagram(data[: len(data) - cut])) <= 2


def test_a_message_without_a_sequence_number_is_skipped() -> None:
    body = struct.pack("!BBH", 2, 0, 0) + netlink.attribute(9, udp(53))
    assert parse_datagram(netlink.message(PACKET, 0, body)) == []


def test_lost_messages_are_counted_by_their_sequence_numbers(pair: tuple[socket.socket, NflogReader]) -> None:
    theirs, reader = pair
    assert reader.read().count == 0
    theirs.send(padded(packet(0, udp(53)), packet(1, udp(53))))
    theirs.send(padded(packet(9, udp(53))))
    logged = reader.read()
    assert (len(logged.captured), logged.count) == (3, 10)
    theirs.send(packet(10, udp(53)))
    assert reader.read().count == 1


def test_the_sequence_number_may_wrap_around(pair: tuple[socket.socket, NflogReader]) -> None:
    theirs, reader = pair
    reader._next = 0xFFFFFFFF
    theirs.send(padded(packet(0xFFFFFFFF, udp(53)), packet(0, udp(53))))
    assert reader.read().count == 2


def test_packets_are_padded_and_measured(pair: tuple[socket.socket, NflogReader]) -> None:
    theirs, reader = pair
    theirs.send(padded(packet(0, udp(53)), packet(1, udp(53, total=2 * 1448 + 52))))
    logged = reader.read()
    assert logged.data.shape == (2, DATA_BYTES)
    assert logged.captured.tolist() == [33, 33]
    assert logged.length.tolist() == [33, 2948]
    assert logged.segments.tolist() == [1, 3]


def counters(arrived: int, dropped: int = 0) -> Counters:
    return Counters(1.0, arrived, arrived * 60, drops=(DropCount("netfilter", "NETFILTER_DROP", dropped),))


def test_the_log_confirms_the_expected_packets(pair: tuple[socket.socket, NflogReader]) -> None:
    theirs, reader = pair
    source = LoggedAccepted(reader._channel.detach(), 64)
    for start in (0, 10, 20):
        theirs.send(padded(*(packet(start + at, udp(53)) for at in range(10))))
        batch, counted = source.add(counters(700, 33), time_ns=5)
        assert counted.accepted_packets == 667  # 640 by the log, which tells whole 64s only
        assert (len(batch), set(batch.hook.tolist())) == (10, {int(Hook.ACCEPTED)})
        assert batch.weight.sum() == 640
        assert set(batch.dport.tolist()) == {53}
    source.close()


def test_the_log_reveals_missing_packets(
    pair: tuple[socket.socket, NflogReader],
) -> None:
    theirs, reader = pair
    source = LoggedAccepted(reader._channel.detach(), 64)
    theirs.send(padded(*(packet(at, udp(53)) for at in range(10))))
    _, counted = source.add(counters(100_000), time_ns=5)
    assert counted.accepted_packets == 640
    source.close()


def test_merged_packets_need_not_appear_in_the_log(pair: tuple[socket.socket, NflogReader]) -> None:
    """2,078 wire packets, merged into 47, are less than one record of the log."""
    _, reader = pair
    source = LoggedAccepted(reader._channel.detach(), 64)
    assert source.add(counters(2078), time_ns=5, largest=44)[1].accepted_packets == 2078
    for _ in range(30):
        _, counted = source.add(counters(2078), time_ns=5, largest=44)
    assert counted.accepted_packets == 0, "a log that stays silent contradicts"
    source.close()
