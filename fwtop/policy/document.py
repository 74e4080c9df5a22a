"""A policy: the rules of its text, and the entries of its lists.

The text is read by a process without rights (confined.py): whoever may apply policies need not be root.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.addresses.targets import check_name, prefixes_of
from fwtop.model.config_file import ConfigText
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.policy.confined import draft_of
from fwtop.policy.draft import UNCHANGED, wrong
from fwtop.policy.schema import MAX_LIST_NAME, TRIAL, ListTable
from fwtop.render.numbers import plural

Lists = Mapping[str, Sequence[Prefix]]
Entries = Callable[[str, ListTable], Sequence[Prefix]]


class Policy(Struct, frozen=True):
    """A policy: its rules, and the entries of each list."""

    text: str
    rules: tuple[Rule, ...]
    lists: Lists
    max_change: float = 1.0

    @property
    def size(self) -> str:
        """How many rules and lists it has, for people: 3 rules, 1 list."""
        return f"{plural(len(self.rules), 'rule')}, {plural(len(self.lists), 'list')}"


def read(path: Path) -> Policy:
    """Read a policy and the files of its lists; raises FwtopError (code 2), naming what is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise FwtopError(f"cannot read {safe_text(path)}: {reason}; {UNCHANGED}", 2) from None
    return parse(text, str(path), lambda _, table: _entries(table, path.parent))


def parse(text: str, name: str, entries: Entries) -> Policy:
    """Read a policy's text; `entries` returns what a list holds, given its name and table.

    Raises FwtopError (code 2).
    """
    draft = draft_of(text, name)
    lists = dict(_lists(ConfigText(name, text), draft.tables, entries))
    return Policy(text, draft.rules, lists, draft.max_change)


def _lists(
    file: ConfigText, tables: Mapping[str, ListTable], entries: Entries
) -> Iterator[tuple[str, Sequence[Prefix]]]:
    from fwtop.model.addresses.named_list import check_entries  # brings numpy

    for own, table in tables.items():
        place = ("list", own)
        try:
            if len(own) > MAX_LIST_NAME or own.endswith(TRIAL):
                raise FwtopError(f"a policy's lists have names of up to {MAX_LIST_NAME} characters")
            found = entries(check_name(own), table)
            check_entries(found)
        except FwtopError as error:
            raise wrong(file, place, str(error)) from None
        for key, is_kept in (("least", operator.ge), ("most", operator.le)):
            bound = getattr(table, key)
            if bound is not UNSET and not is_kept(len(found), bound):
                raise wrong(file, (*place, key), f"the list holds {len(found):,}, but {key} = {bound}")
        yield own, found


def _entries(table: ListTable, directory: Path) -> Sequence[Prefix]:
    """Return the entries that a list's table names; raises FwtopError."""
    named = prefixes_of(table.texts)
    if table.file is UNSET:
        return named
    found = read_prefix_file(str(directory / table.file))
    if not named:
        return found
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.union((found, named))
