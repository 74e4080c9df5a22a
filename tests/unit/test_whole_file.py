"""Files that are written whole: the old one stays until the new one is there, and no trace if it never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fwtop.model.files import replacing


def test_a_file_is_replaced_in_one_step_and_has_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path, permissions=0o640) as file:
        file.write("new\n")
        assert path.read_text() == "old"
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path, "wb") as file:
        file.writelines([b"half" * 10_000, "no bytes"])
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_neither_a_link_that_others_planted_nor_its_target_is_written(tmp_path: Path) -> None:
    """Beside the file, where a name could be guessed; and in its place, which the file takes."""
    target = tmp_path / "target"
    target.write_text("root's")
    for name in ("file", "file.new"):
        (tmp_path / name).symlink_to(target)
    with replacing(tmp_path / "file") as file:
        file.write("new")
    assert target.read_text() == "root's"
    assert (tmp_path / "file").read_text() == "new"


def test_a_name_within_a_directory_of_which_there_is_a_descriptor(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    with replacing(Path("file"), directory=handle) as file:
        file.write("x")
    os.close(handle)
    assert os.listdir(tmp_path) == ["file"]
