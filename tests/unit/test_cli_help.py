"""Commands in help and documentation: each is one that its verb's parser accepts."""

import re
import shlex
from pathlib import Path

import pytest

from fwtop.cli import fleet
from fwtop.cli.main import VERBS, _Parser, named, verb_module

CLONE = Path(__file__).resolve().parents[2]
PAGES = [CLONE / "README.md", *sorted((CLONE / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|; )(?:sudo )?fwtop (.*?)(?=;|  |$| [#|] )", re.MULTILINE)
PLACEHOLDER = re.compile(r"[\[…·|]|\b[A-Z]+\b")


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_each_verb_is_one_that_it_accepts(verb: str) -> None:
    module = verb_module(verb)
    assert module.HELP.endswith(".")
    command = module.EXAMPLE.partition(" | ")[0].rpartition("&& ")[2].removeprefix("sudo ")
    program, *words = shlex.split(command)
    assert program == "fwtop"
    if verb in words:  # the default verb goes without
        words.remove(verb)
    accept(verb, words)


@pytest.mark.parametrize("action", fleet.ACTIONS)
def test_the_example_of_each_action_is_one_that_it_accepts(action: str) -> None:
    module = fleet.action(action)
    assert module.HELP.endswith(".")
    verb, *words = shlex.split(module.EXAMPLE.removeprefix("sudo ").removeprefix("fwtop "))
    assert (verb, words[0]) == ("fleet", action)
    accept(verb, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_verbs_accept_the_commands_of_a_page(page: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for command in COMMAND.findall(block):
            verb = command.partition(" ")[0]
            if verb in VERBS and not PLACEHOLDER.search(command):
                accept(verb, shlex.split(command)[1:])


def accept(verb: str, words: list[str]) -> None:
    parser = _Parser(prog="fwtop", allow_abbrev=False)
    _, module, words = named(verb, words)
    module.arguments(parser)
    parser.parse_intermixed_args(words)
