"""Relocation of byte code, and the cache of compiled programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fwtop.compile import compiler
from fwtop.model.errors import FwtopError

NEXT = bytes([0xB7, 0, 0, 0, 7, 0, 0, 0])  # r0 = 7: looks like map number 7, but is none


def load_map(number: int, source: int, register: int = 1) -> bytes:
    return bytes([0x18, source << 4 | register, 0, 0, number, 0, 0, 0]) + bytes(8)


def test_map_numbers_become_descriptors() -> None:
    code = load_map(1, 1) + NEXT + load_map(2, 2, register=7) + load_map(1, 0)
    patched = compiler.relocate(code, {1: 300, 2: 11})
    assert patched == load_map(0, 1)[:4] + (300).to_bytes(4, "little") + bytes(8) + NEXT + load_map(
        11, 2, register=7
    ) + load_map(1, 0)  # the last is a plain number


def test_a_constant_becomes_a_plain_number() -> None:
    patched = compiler.relocate(load_map(3, 15, register=4) + NEXT, {3: 0x1_0000_0007})
    assert patched == bytes([0x18, 4, 0, 0, 7, 0, 0, 0]) + bytes(4) + (1).to_bytes(4, "little") + NEXT


def test_an_unknown_map_is_an_error() -> None:
    with pytest.raises(KeyError):
        compiler.relocate(load_map(9, 1), {1: 3})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    monkeypatch.setattr(compiler, "RUN_DIRECTORY", folder)
    return folder


def test_a_cached_value_is_found_by_its_own_key_only(kept: Path) -> None:
    assert compiler.load_cached("code", [1, {"a": 2}]) is None
    compiler.store_cached("code", [1, {"a": 2}], {"x": "y"})
    assert compiler.load_cached("code", [1, {"a": 2}]) == {"x": "y"}
    assert compiler.load_cached("code", [1, {"a": 3}]) is None
    assert compiler.load_cached("kernel", [1, {"a": 2}]) is None
    assert [path.stat().st_mode & 0o777 for path in kept.iterdir()] == [0o600]


@pytest.mark.parametrize("damage", ["writable", "cut"])
def test_a_file_that_others_can_write_or_is_damaged_is_ignored(kept: Path, damage: str) -> None:
    compiler.store_cached("code", 1, {"x": "y"})
    (path,) = kept.iterdir()
    if damage == "writable":
        path.chmod(0o666)
    else:
        path.write_text(path.read_text()[:5])
    assert compiler.load_cached("code", 1) is None


def test_without_a_directory_nothing_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiler, "RUN_DIRECTORY", tmp_path / "file" / "run")
    compiler.store_cached("code", 1, {})
    assert compiler.load_cached("code", 1) is None


def test_changed_sources_are_compiled_again(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def pretend(files: list[str], definitions: Any, programs: list[str]) -> dict[str, bytes]:
        compiled.append(definitions)
        return {name: b"code of " + name.encode() for name in programs}

    (tmp_path / "a.c").write_text("one")
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    monkeypatch.setattr(compiler, "compile_programs", pretend)
    for _ in range(2):
        assert compiler.byte_code(["a.c"], {"N": 1}, ["p"]) == {"p": b"code of p"}
    assert len(compiled) == 1
    compiler.byte_code(["a.c"], {"N": 2}, ["p"])
    (tmp_path / "a.c").write_text("two")
    compiler.byte_code(["a.c"], {"N": 2}, ["p"])
    assert len(compiled) == 3


def test_without_bcc_the_line_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc", None)  # what makes an import fail
    with pytest.raises(FwtopError, match="apt install python3-bpfcc") as raised:
        compiler._bcc()
    assert raised.value.code == 3


def test_the_loader_imports_nothing_slow() -> None:
    """It stands between the start and the first numbers; numpy takes longer than all it does."""
    heavy = "[name for name in ('numpy', 'bcc', 'subprocess', 'asyncio') if name in sys.modules]"
    code = f"import sys, fwtop.observe.loader, fwtop.observe.programs; print({heavy})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"
