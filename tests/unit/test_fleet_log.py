"""The log of a machine of a fleet, read while its guardian writes."""

from __future__ import annotations

import json
from pathlib import Path

from fwtop.guardian.fleet.record import LOG, RECORD, Known, check_log, digest_of, log_lines
from fwtop.model.wire import to_json


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    first = json.dumps({"seq": 1, "at": 1.0, "previous": "", "event": "taken"}).encode()
    second = json.dumps({"seq": 2, "at": 2.0, "previous": digest_of(first), "event": "trial"}).encode()
    (tmp_path / RECORD).write_bytes(to_json(Known(lines=1, head=digest_of(first))))
    for written in range(len(second) + 1):
        (tmp_path / LOG).write_bytes(first + b"\n" + second[:written])
        assert list(log_lines(tmp_path)) == [first]
        assert check_log(tmp_path) == 1
    (tmp_path / LOG).write_bytes(first + b"\n" + second + b"\n")
    assert check_log(tmp_path) == 2
