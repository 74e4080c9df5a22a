"""What the confined reader of policies may do, and what of its answer is believed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import bundle, pack_prefixes, read_bundle
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT
from fwtop.model.wire import of_plain
from fwtop.policy import document
from fwtop.policy.document import draft_of


def test_a_fresh_process_reads_what_its_verbs_refuse() -> None:
    """Nothing that a verb's parser needs is looked for once files can't be opened any more."""
    for table, words in (
        ("[[port]]\nservice = '443/tcp'\n", "level protected needs acl"),
        ("[[limit]]\nper = 24\nrate = 'fast'\n", "x:4: limit[0].rate: 'fast' is not a rate"),
        ("[[signature]]\nproto = 'udp'\n", "x:2: signature[0]: "),
    ):
        code = (
            "import sys\nfrom fwtop.policy.document import draft_of\n"
            f"try: draft_of('schema = 1\\n' + {table!r}, 'x')\nexcept Exception as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert words in done.stdout, done


def test_the_reader_can_open_nothing_and_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def tries(text: str, name: str) -> document.Draft:
        if not text.startswith("schema = 9"):
            return read(text, name)
        reached = []
        for what in (
            lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
            lambda: os.close(os.memfd_create("x")),
            lambda: os.kill(os.getppid(), 0),
            os.fork,
            lambda: __import__("socket").socket(),
        ):
            try:
                what()
                reached.append(what)
            except OSError:
                pass
        raise FwtopError(f"reached {len(reached)}", 2)

    read = document.read_draft
    monkeypatch.setattr(document, "read_draft", tries)
    with pytest.raises(FwtopError, match="reached 0"):
        draft_of("schema = 9", "x")


def test_what_a_reader_makes_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was taken over can't make root install what is no policy's rule."""
    good = draft_of("schema = 1\n[list.a]\n[[block]]\nlist = 'a'\n", "x").rules[0].to_dict()
    whole = {"rules": [good], "tables": {"a": {}}, "max_change": 1.0}

    def believed(answer: object) -> document.Draft:
        return document._checked(of_plain(document.Draft, answer))

    assert believed(whole).rules[0].list_name == "a"
    sysctl = {**good, "kind": "sysctl", "origin": None, "settings": [["net.ipv4.tcp_syncookies", 1]]}
    for wrong in (
        {**whole, "rules": [sysctl]},
        {**whole, "tables": {"b": {}}},
        {**whole, "tables": {"a": {"entries": [1]}}},
        {**whole, "tables": {"a": {"x": 1}}},
        {**whole, "tables": 7},
        {**whole, "max_change": "1"},
        {},
    ):
        with pytest.raises((FwtopError, ValueError)):
            believed(wrong)
    made = believed({**whole, "rules": [{**good, "created_by": "root", "ttl_seconds": 60}]})
    assert made.rules[0].created_by == "policy"


def test_lists_in_one_file_come_back_and_nothing_else_does() -> None:
    few = tuple(map(Prefix.parse, ("192.0.2.0/24", "2001:db8::/32")))
    many = tuple(Prefix(4, number << 8, 24) for number in range(1 << 16, (1 << 16) + 6000))
    descriptor = bundle({"few": few, "none": (), "many": many})
    found = read_bundle(descriptor)
    assert list(found) == ["few", "none", "many"]
    assert [pack_prefixes(found[name]) for name in found] == [pack_prefixes(item) for item in (few, (), many)]
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = os.read(descriptor, 1 << 20)
    for wrong in (data[:-1], data + b"\3few" + bytes(8), b"\2ab\xff" + b"\xff" * 7):
        other = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.write(other, wrong)
        with pytest.raises(ValueError, match="seal"):
            read_bundle(other)
        import fcntl

        from fwtop.model.addresses.prefix_list import SEALS

        fcntl.fcntl(other, fcntl.F_ADD_SEALS, SEALS)
        with pytest.raises(ValueError, match=r"bundle|prefixes|list"):
            read_bundle(other)
        os.close(other)
    os.close(descriptor)
