"""What the night in anger starts, and what it may rightly call it."""

from __future__ import annotations

import shlex

import pytest

from benches.anger.lab import SERVED, Steady
from benches.anger.tools import BOTS, TOOLS, Tool
from benches.tables.anger import Met
from benches.tables.hour import PEERS, SERVERS
from fwtop.lab.network import VICTIM_4


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_attacks_the_watched_host_alone_and_is_no_client(tool: Tool) -> None:
    command = tool.command.replace("{bots}", " ".join(BOTS)).replace("{bot}", BOTS[0])
    filled = command.format(host=VICTIM_4, folder="folder")
    assert VICTIM_4 in filled
    assert not any(peer in filled for peer in PEERS)
    assert shlex.split(filled)


def test_tools_have_names_of_their_own_and_clients_ask_what_is_served() -> None:
    assert len({tool.name for tool in TOOLS}) == len(TOOLS)
    assert not {*BOTS} & {*PEERS}
    assert {served.port for served in SERVED} <= {server.port for server in SERVERS}


def test_shares_are_of_the_requests_of_a_time() -> None:
    steady = Steady("nowhere", VICTIM_4, (), 1.0)
    steady._answers += [(0.5, "web", False), (1.0, "web", True), (1.5, "web", False), (1.2, "dns", True)]
    assert steady.share(1.0, 2.0) == {"web": 0.5, "dns": 1.0}


def test_harm_is_the_worst_loss_with_the_rule_after_the_attack() -> None:
    assert Met(TOOLS[0], 0.0, served={"web": 0.1}, spared={"web": 1.0, "dns": 0.75}).harm == 0.25
    assert Met(TOOLS[0], 0.0).harm == 0.0
