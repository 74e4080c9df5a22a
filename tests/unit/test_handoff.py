"""The launcher's one message to the console: settings of any content fit into it."""

from __future__ import annotations

import os
import socket

import pytest

from fwtop.cli.files import MAX_BYTES
from fwtop.console.handoff import Handoff, receive_handoff, send_handoff


@pytest.mark.parametrize("text", ["\n" * MAX_BYTES, '"' * MAX_BYTES, "é" * (MAX_BYTES // 2), "#" * MAX_BYTES])
def test_the_largest_files_are_handed_over_whole(text: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        files = [("/etc/fwtop/screen.toml", text, ""), ("/home/a/.config/fwtop/screen.toml", text, "")]
        sent = Handoff({"names": ["x" * 8192]}, ["events"], settings=files)
        send_handoff(ours, sent, [ours.fileno()])
        got, descriptors = receive_handoff(theirs)
        for descriptor in descriptors:
            os.close(descriptor)
        assert [tuple(file) for file in got.settings] == files
        assert (got.watch, got.names, len(descriptors)) == (sent.watch, sent.names, 1)
