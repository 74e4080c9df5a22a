"""README and docs/ name what is there: every key, every verb, every page, every picture."""

import re
from pathlib import Path

import pytest

from fwtop.cli.main import VERBS
from fwtop.ui.keys import ACTIONS
from fwtop.ui.tabs import TABS

CLONE = Path(__file__).resolve().parents[2]
README = (CLONE / "README.md").read_text(encoding="utf-8")
KEYS_PAGE = (CLONE / "docs/KEYS.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (CLONE / "docs/COMMANDS.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def test_the_table_of_keys_is_the_programs():
    rows = KEYS_PAGE.split("| key | what it does |\n|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    assert rows == [f"| `{key.label}` | {key.help} |" for key in ACTIONS if key.label]


def test_every_tab_is_described():
    for tab in TABS:
        assert f"| {tab.title} | " in README


def test_every_verb_stands_on_the_page_of_commands():
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", COMMANDS_PAGE), verb


@pytest.mark.parametrize(
    "page", [CLONE / "README.md", *(CLONE / "docs").glob("*.md")], ids=lambda page: page.name
)
def test_every_picture_and_file_that_a_page_links_to_is_there(page: Path):
    for name in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / name).exists(), name


def test_the_index_of_docs_lists_every_file():
    listed = set(LINK.findall((CLONE / "docs/README.md").read_text(encoding="utf-8")))
    assert {path.name for path in (CLONE / "docs").iterdir()} - {"README.md", "accuracy.svg"} <= listed
