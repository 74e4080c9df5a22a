"""The README names what is there: every key, every verb, every picture."""

import re
from pathlib import Path

from fwtop.cli.main import VERBS
from fwtop.ui.keys import KEYS
from fwtop.ui.tabs import TABS

CLONE = Path(__file__).resolve().parents[2]
README = (CLONE / "README.md").read_text(encoding="utf-8")


def test_the_table_of_keys_is_the_programs():
    rows = README.split("| key | what it does |\n|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    assert rows == [f"| `{key.label}` | {key.help} |" for key in KEYS if key.label]


def test_every_tab_is_described():
    for tab in TABS:
        assert f"| {tab.title} | " in README


def test_every_verb_that_exists_stands_in_the_readme():
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", README), verb


def test_every_picture_and_file_that_it_names_is_there():
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (CLONE / name).exists(), name
