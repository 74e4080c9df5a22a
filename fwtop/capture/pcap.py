"""Classic pcap (draft-ietf-opsawg-pcap), read as arrays of records."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from fwtop.capture.records import (
    MAX_RECORD,
    ROWS,
    Records,
    Stream,
    check_link_type,
    stopped_note,
    to_batch,
    words,
)
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import I64, PacketBatch

MAGICS = {
    bytes.fromhex("d4c3b2a1"): ("<", 1000),
    bytes.fromhex("a1b2c3d4"): (">", 1000),
    bytes.fromhex("4d3cb2a1"): ("<", 1),
    bytes.fromhex("a1b23c4d"): (">", 1),
}
_FILE_HEADER, _RECORD_HEADER = 24, 16
_STEP_BYTES = 1 << 18  # before checking for a run of equal sizes
_RUN = 6  # after so many records of one size, the next ones are expected to have it too


class PcapReader:
    """The packets of a classic pcap file."""

    kind = "pcap"

    def __init__(self, stream: Stream, notes: list[str]) -> None:
        if not stream.have(_FILE_HEADER):
            raise FwtopError("the capture ends within its file header; it holds no packets")
        self._stream = stream
        self._notes = notes
        head = stream.data[stream.pos : stream.pos + _FILE_HEADER].tobytes()
        self._order, self._tick_ns = MAGICS[head[:4]]
        # The upper bits describe the frame check sequence
        self._link_type = check_link_type(struct.unpack(f"{self._order}I", head[20:24])[0] & 0xFFFF)
        stream.pos += _FILE_HEADER

    @property
    def link_types(self) -> list[int]:
        """Link types seen so far."""
        return [self._link_type]

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets in file order."""
        stream, broken, count = self._stream, False, 0
        while not broken:
            places, broken = self._find()
            for first in range(0, len(places), ROWS):
                count += len(places[first : first + ROWS])
                stream.records = count
                yield self._batch(places[first : first + ROWS])
            if not broken and not stream.more():
                break
        if broken:
            self._notes.append(f"record {count + 1} is broken (impossible length); read up to there")
        elif stream.stopped:
            self._notes.append(stopped_note(count))
        elif stream.pos < stream.end:
            self._notes.append(f"record {count + 1} is cut off; read up to there")
        if stream.note:
            self._notes.append(stream.note)

    def _batch(self, places: I64) -> PacketBatch:
        head = words(self._stream, places, 4, self._order)
        time_ns = head[:, 0] * 1_000_000_000 + head[:, 1] * self._tick_ns
        return to_batch(
            self._stream, Records(self._link_type, places + _RECORD_HEADER, head[:, 2], head[:, 3], time_ns)
        )

    def _find(self) -> tuple[I64, bool]:
        """Return the offsets of the complete records in the buffer, and whether a broken one follows."""
        stream, broken = self._stream, False
        pos, end = stream.pos, stream.end
        found: list[I64] = []
        while pos + _RECORD_HEADER <= end and not broken:
            starts, after, broken = self._steps(pos, end)
            found.append(starts)
            if after == pos:  # the next record is incomplete
                break
            pos = after
            if len(starts) >= _RUN and pos - int(starts[-_RUN]) == _RUN * (pos - int(starts[-1])):
                stride = pos - int(starts[-1])
                found.append(self._equal_sized(pos, end, stride - _RECORD_HEADER))
                pos += len(found[-1]) * stride
        stream.pos = pos
        return np.concatenate([np.zeros(0, np.int64), *found]), broken

    def _steps(self, pos: int, end: int) -> tuple[I64, int, bool]:
        """Step from record to record, for at most _STEP_BYTES: the only Python loop over packets.

        Returns their offsets, the offset behind them, and whether the record there is broken.
        """
        memory = self._stream.data.data
        size_of = struct.Struct(f"{self._order}I").unpack_from
        starts: list[int] = []
        add = starts.append
        last = end - _RECORD_HEADER
        most = min(last, pos + _STEP_BYTES)
        while pos <= most:
            add(pos)
            pos += 16 + size_of(memory, pos + 8)[0]
        add(pos)
        places = np.array(starts, np.int64)
        large = places[1:] - places[:-1] > _RECORD_HEADER + MAX_RECORD
        if large.any():
            first = int(large.argmax())
            return places[:first], starts[first], True
        if pos > end:
            return places[:-2], starts[-2], False
        return places[:-1], pos, False

    def _equal_sized(self, pos: int, end: int, size: int) -> I64:
        """Return the offsets of consecutive records of this size from `pos` on.

        Checks four times as many in each step, so that short and long runs are both cheap.
        """
        stride = _RECORD_HEADER + size
        most = (end - pos) // stride
        count = 0
        guess = 4 * _RUN
        while count < most:
            guess = min(4 * guess, most - count)
            first = pos + count * stride + 8
            sizes = np.ndarray(guess, f"{self._order}u4", self._stream.data, first, (stride,))
            same = sizes == size
            if not same.all():
                count += int(same.argmin())
                break
            count += guess
        return pos + np.arange(count, dtype=np.int64) * stride
