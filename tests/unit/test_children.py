"""What a child answered is received however it ended."""

from __future__ import annotations

import socket

import pytest

from fwtop.kernel import children
from fwtop.model.messages import Answer, ProtocolError, encode_answer


def test_an_answer_outlives_a_child_that_ended_with_a_request_unread() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        with theirs:
            theirs.send(encode_answer(Answer(True, data={"kept": None})))
            mine.send(b"a request that came too late")
        assert children.receive(mine)[0].data == {"kept": None}
        with pytest.raises(ProtocolError, match="ended without an answer"):
            children.receive(mine)
