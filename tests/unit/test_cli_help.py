"""The help of every verb: an example that its own parser accepts."""

import shlex

import pytest

from fwtop.cli.main import VERBS, _Parser, verb_module


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_each_verb_is_one_that_it_accepts(verb: str) -> None:
    module = verb_module(verb)
    assert module.HELP.endswith(".")
    command = module.EXAMPLE.partition(" | ")[0].rpartition("&& ")[2].removeprefix("sudo ")
    program, *words = shlex.split(command)
    assert program == "fwtop"
    if verb in words:  # the default verb goes without
        words.remove(verb)
    parser = _Parser(prog="fwtop")
    module.arguments(parser)
    parser.parse_intermixed_args(words)
