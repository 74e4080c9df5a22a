"""A prefix with host bits is refused with the network that it lies in, wherever one is read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from fwtop.cli.rules import mitigation
from fwtop.guardian.allow.allowlist import read_allow_file
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.addresses.address import prefixes_of
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule
from fwtop.policy.document import read as read_policy
from fwtop.ui.actions.editor import InvalidInput, sources_field
from fwtop.ui.actions.row_rules import rule_from_targets

WRONG, NETWORK = "10.77.0.3/8", "10.0.0.0/8"


def _rule(side: str) -> object:
    data = Rule("", Kind.XDP, Match(), "x", 60).to_dict()
    data["match"][side] = [WRONG]
    return rule_of_wire(data)


def _field() -> object:
    rule = rule_from_targets("block", ["192.0.2.1"], 0.0)
    return sources_field(rule.match.sources).write(rule, WRONG)


def _policy(directory: Path, table: str) -> object:
    (directory / "policy.toml").write_text(f"schema = 1\n[list.a]\n{table}\n")
    return read_policy(directory / "policy.toml")


def _file(directory: Path, text: str) -> str:
    (directory / "list").write_text(text)
    return str(directory / "list")


LONG = "192.0.2.0/24\n" * 20_000

DOORS: dict[str, Callable[[Path], object]] = {
    "targets": lambda _: prefixes_of(["192.0.2.1", WRONG]),
    "option": lambda _: mitigation.prefix(WRONG),
    "file": lambda path: read_prefix_file(_file(path, f"192.0.2.1\n{WRONG}\n")),
    "long file": lambda path: read_prefix_file(_file(path, f"{LONG}{WRONG}\n")),
    "long file of ports": lambda path: read_prefix_file(_file(path, f"{WRONG}:53/udp\n"), for_list=True),
    "entries": lambda _: entries_of([WRONG]),
    "entries with ports": lambda _: entries_of([f"{WRONG}:443/tcp"]),
    "policy": lambda path: _policy(path, f'entries = ["{WRONG}"]'),
    "sources of a request": lambda _: _rule("sources"),
    "destinations of a request": lambda _: _rule("destinations"),
    "command of the screen": lambda _: rule_from_targets("block", [WRONG], 0.0),
    "dialog": lambda _: _field(),
}


@pytest.mark.parametrize("door", DOORS)
def test_host_bits_are_refused_with_the_network(door: str, tmp_path: Path) -> None:
    with pytest.raises((FwtopError, InvalidInput, argparse.ArgumentTypeError)) as caught:
        DOORS[door](tmp_path)
    assert "has host bits" in str(caught.value)
    assert f"network is {NETWORK}" in str(caught.value)


def test_a_file_names_the_line_with_host_bits(tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match=rf"line 20001: '{WRONG}' has host bits, the network is {NETWORK}"):
        read_prefix_file(_file(tmp_path, f"{LONG}{WRONG}\n"))


def test_of_an_allow_line_with_host_bits_the_host_passes(tmp_path: Path) -> None:
    found, (warning,) = read_allow_file(Path(_file(tmp_path, f"192.0.2.1\n{WRONG}\n")))
    assert [str(entry.prefix) for entry in found] == ["192.0.2.1", "10.77.0.3"]
    assert f"line 2: '{WRONG}' has host bits: the network is {NETWORK}" in warning
    assert "only the host passes" in warning
