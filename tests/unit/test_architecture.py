"""ARCHITECTURE.md names real packages, files and functions, and its two ways are short."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
MAX_HOPS = 25


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def way(title: str) -> list[tuple[str, str]]:
    """The hops of a way: file and function."""
    return re.findall(r"^\d+\. `([\w/.]+)` `([\w.]+)`", section(title), re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Functions, classes and methods of a Python file, or names that a C file defines."""
    if path.suffix != ".py":
        return set(re.findall(r"^(?:INLINE |static )*\w[\w *]*?\**(\w+)\(", path.read_text(), re.MULTILINE))
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if hasattr(item, "name")} | {node.name}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("title", ["The way of a packet", "The way of a key"])
def test_the_ways_are_short_and_every_hop_exists(title: str) -> None:
    hops = way(title)
    numbered = re.findall(r"^\d+\. ", section(title), re.MULTILINE)
    assert 10 <= len(hops) == len(numbered) <= MAX_HOPS
    for file, function in hops:
        assert function in defined(ROOT / file), f"{file} has no {function}"


def test_the_table_of_packages_is_the_tree_and_the_contract() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", section("Layers"), re.MULTILINE)
    tops = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    there = {path.parent.name for path in (ROOT / "fwtop").glob("*/__init__.py")}
    assert set(tops) == there
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(item["layers"] for item in contracts if item["type"] == "layers")
    assert tops == [name for line in layers for name in re.findall(r"fwtop\.(\w+)", line)]


def test_every_file_that_it_names_is_there() -> None:
    for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|c|h|sh|md|toml))`", TEXT):
        assert (ROOT / name).exists() or (ROOT / "fwtop" / name).exists(), name


def test_files_that_comments_and_documents_name_are_there() -> None:
    """A path that begins with one of our folders, in the sources and in docs/."""
    sources = (path for folder in ("fwtop", "bpf", "docs") for path in (ROOT / folder).rglob("*.*"))
    ours = {path.name for top in (ROOT, ROOT / "fwtop") for path in top.iterdir() if path.is_dir()}
    for source in sources:
        if source.suffix in {".py", ".c", ".h", ".md"}:
            for name in re.findall(
                r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.(?:py|c|h|sh|md))\b", source.read_text()
            ):
                there = any((base / name).exists() for base in (ROOT, ROOT / "fwtop", source.parent))
                assert there or name.split("/")[0] not in ours or name.startswith("kernel/"), (
                    source.name,
                    name,
                )


def test_the_contracts_about_libraries_hold_every_package_but_the_owner() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    owners = {}
    for contract in contracts:
        if contract.get("allow_indirect_imports"):
            (library,), (ignored,) = contract["forbidden_modules"], contract["ignore_imports"]
            assert contract["source_modules"] == ["fwtop"]
            owners[library] = ignored
    assert owners == {
        library: f"fwtop.{owner}.** -> {library}"
        for library, owner in {
            "bcc": "compile", "textual": "ui", "maxminddb": "enrich", "sqlite3": "store",
            "prometheus_client": "console", "nats": "fleet", "cryptography": "fleet",
        }.items()
    }  # fmt: skip
    (circles,) = (contract for contract in contracts if contract["type"] == "acyclic_siblings")
    assert (circles["ancestors"], circles["skip_descendants"]) == (["fwtop"], ["fwtop.model"])
