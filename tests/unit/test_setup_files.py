"""The files that set-up lays down know every verb, and the build hash knows every file."""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fwtop.cli import fleet, main
from fwtop.cli.completion import write
from fwtop.model import paths

FILES = paths.ROOT / "scripts/files"
HASH = runpy.run_path(str(paths.ROOT / "scripts/build_hash.py"))


@functools.cache
def completion() -> dict[str, str]:
    """Return the files of completion by their names, as set-up writes them."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        return {path.name: path.read_text() for path in Path(name).iterdir()}


def complete(*words: str) -> list[str]:
    """Return what bash's completion offers for the last word."""
    script = (
        f'{completion()["fwtop.bash"]}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_fwtop;'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("verb", list(main.VERBS))
def test_man_page_and_completion_know_the_verb(verb):
    page = (FILES / "fwtop.8").read_text()
    assert f".B {verb}\n" in page or f'.BI {verb} "' in page
    assert verb in complete("fwtop", verb[:-1])
    assert f"\n    {verb}:" in completion()["_fwtop"]
    assert f"-a {verb} " in completion()["fwtop.fish"]


@pytest.mark.parametrize("verb", list(main.VERBS))
def test_completion_offers_the_options_of_the_verb_and_their_choices(verb):
    parser = argparse.ArgumentParser()
    main.verb_module(verb).arguments(parser)
    actions = [action for action in parser._actions if action.option_strings]
    options = {name for action in actions for name in action.option_strings}
    assert {word for word in complete("fwtop", verb, "-") if word.startswith("-")} == options
    for action in actions:
        if action.choices:
            offered = complete("fwtop", verb, action.option_strings[0], "")
            assert offered == list(action.choices)


def test_completion_offers_interfaces():
    assert "lo" in complete("fwtop", "watch", "-i", "")


def test_completion_offers_protocols_scenarios_and_tables():
    assert complete("fwtop", "drop", "--proto", "") == ["tcp", "udp", "icmp", "icmpv6", "gre"]
    assert {"list", "udp_flood"} <= set(complete("fwtop", "lab", ""))
    assert {"list", "ladder"} <= set(complete("fwtop", "bench", ""))


def test_the_man_page_knows_every_option():
    page = (FILES / "fwtop.8").read_text().replace("\\-", "-")
    for verb in main.VERBS:
        parser = argparse.ArgumentParser()
        main.verb_module(verb).arguments(parser)
        for name in (name for action in parser._actions for name in action.option_strings[-1:]):
            assert name in page, (verb, name)


def options_of(verb) -> set[str]:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return set(parser._option_string_actions)


def test_the_man_page_and_the_docs_name_no_option_that_a_verb_has_not():
    known = {verb: options_of(main.verb_module(verb)) for verb in main.VERBS}
    known |= {f"fleet {name}": options_of(fleet.action(name)) for name in fleet.ACTIONS}
    page = (FILES / "fwtop.8").read_text().replace("\\-", "-")
    sections = re.split(r"^\.BI? ([a-z]+)(?= \"|$)", page, flags=re.MULTILINE)
    named = [
        (verb, line)
        for verb, text in zip(sections[1::2], sections[2::2], strict=True)
        for line in ["", *re.findall(r"^Options: .*", text, re.MULTILINE)]
    ]
    assert {verb for verb, _ in named} >= set(main.VERBS)
    for path in (paths.ROOT / "README.md", *sorted((paths.ROOT / "docs").glob("*.md"))):
        named += re.findall(r"(?<!\S)`?fwtop (fleet [a-z]+|[a-z]+)\b([^`\n·|#;&]*)", path.read_text())
    wrong = [
        (verb, option)
        for verb, text in named
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)
        if verb in known and option not in known[verb]
    ]
    assert not wrong


def test_every_module_and_bpf_source_is_installed():
    installed = set(HASH["program_files"](paths.ROOT))
    for folder, suffixes in (("fwtop", {".py", ".toml"}), ("bpf", {".c", ".h"})):
        files = [path for path in (paths.ROOT / folder).rglob("*") if path.suffix in suffixes]
        assert files
        assert {path.relative_to(paths.ROOT) for path in files} <= installed
    assert not any(
        path.name in ("registries.py", "build.py") for path in installed if path.parts[0] == "geoip"
    )


def test_the_build_hash_changes_with_every_installed_file_and_with_nothing_else(tmp_path):
    copy = tmp_path / "clone"
    for path in HASH["program_files"](paths.ROOT):
        if "geoip" not in path.parts:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / path, copy / path)
    before = HASH["build_hash"](copy)
    (copy / "fwtop/__pycache__").mkdir(exist_ok=True)
    (copy / "fwtop/__pycache__/x.pyc").write_bytes(b"cache")
    (copy / "README.md").write_text("not installed")
    assert HASH["build_hash"](copy) == before
    (copy / "bpf/record.h").write_text("changed")
    changed = HASH["build_hash"](copy)
    (copy / "fwtop/added.py").write_text("")
    assert len({before, changed, HASH["build_hash"](copy)}) == 3


def test_what_is_installed_is_also_uninstalled():
    scripts = paths.ROOT / "scripts"
    installed = re.findall(
        r"install_file .* \"(\$\w+)\"$", (scripts / "install.sh").read_text(), re.MULTILINE
    )
    assert "$overdue_timer" in installed
    removed = (scripts / "uninstall.sh").read_text()
    assert not [name for name in installed if f'"{name}"' not in removed]
