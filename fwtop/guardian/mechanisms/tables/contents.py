"""Whether fwtop's own nftables tables say what they said when written: lines, heads of chains, sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec import Struct, field

from fwtop.guardian.mechanisms.mechanism import HEAD_CHANGED, Baseline, digest, head_key
from fwtop.guardian.mechanisms.tables.state import rule_chain
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import ANY_PORT, Passes
from fwtop.netfilter import nf_tables
from fwtop.rules.nft_objects import Layout, NftRule, outermost, set_of

_MOST_READ = 65_536  # elements: a longer set is only found to be shorter than that
_MAX_COMPARED = 4096  # elements; a longer set is only found emptied


class _Read(Struct):
    """A table as the kernel has it: digests of lines by chain, those of rules apart from all others."""

    heads: dict[str, list[str]] = field(default_factory=dict)
    rules: dict[str, list[str]] = field(default_factory=dict)  # by comment


class NftContents:
    """The contents of all tables."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._latest: dict[str, tuple[int, _Read]] = {}  # by table, with the number of the rule set

    def _read(self, layout: Layout) -> _Read:
        now = nf_tables.generation()
        before, found = self._latest.get(layout.table, (0, _Read()))
        if not now or now != before:
            found = _read(layout)
            self._latest[layout.table] = now, found
        return found

    def note_rule(self, rule_id: str, rule: NftRule, *, anew: bool = True) -> None:
        """Take a rule's lines and sets as they are, just written; not `anew`: where nothing is known."""
        table = rule.layout.table
        lines = self._read(rule.layout).rules.get(f"fwtop-{rule_id}", [])
        self._baseline.note(f"{table}/rule/{rule_id}", lines, anew=anew)
        self.note_sets(rule.layout, _sets(rule_id, rule), anew=anew)

    def note_heads(self, layout: Layout, heads: Mapping[str, Sequence[str]], *, anew: bool = False) -> None:
        """Take the first lines of chains as they are; where some with these words are known, only `anew`."""
        there = self._read(layout).heads
        for chain, words in heads.items():
            if words and chain in there:
                self._baseline.note(head_key(layout.table, chain, words), there[chain], anew=anew)

    def note_sets(self, layout: Layout, names: Iterable[str], *, anew: bool = True) -> None:
        """Take sets as they are, just filled."""
        for name in names:
            self._baseline.note(f"{layout.table}/set/{name}", _of_set(layout, name), anew=anew)

    def forget_rules(self, rule_ids: Iterable[str]) -> None:
        """Forget the sets of rules that ended."""
        ended = tuple(f"/set/{set_of(rule_id, '')}" for rule_id in rule_ids)
        self._baseline.forget(lambda key: any(mark in key for mark in ended))

    def forget_table(self, layout: Layout) -> None:
        """Forget a table that is gone."""
        self._baseline.forget(lambda key: key.startswith(f"{layout.table}/"))

    def shortfall(self, rule_id: str, rule: NftRule, heads: Mapping[str, Sequence[str]]) -> str:
        """Say what of a rule, or of the chains that lead to it, was changed; "" if nothing.

        Raises FwtopError.
        """
        table, there = rule.layout.table, self._read(rule.layout)
        for chain, words in heads.items():
            found = there.heads.get(chain, ())
            if self._baseline.differs(head_key(table, chain, words), found) or (found and not words):
                return f"{HEAD_CHANGED} {chain} in table {table} were changed"
        for family in rule.families:
            if there.heads.get(rule_chain(rule_id, family)):
                return (
                    f"somebody put lines of others into chain {rule_chain(rule_id, family)} of table {table}"
                )
        if self._baseline.differs(f"{table}/rule/{rule_id}", there.rules.get(f"fwtop-{rule_id}", ())):
            return f"its lines in table {table} were changed"
        for name in _sets(rule_id, rule):
            if self._baseline.differs(f"{table}/set/{name}", _of_set(rule.layout, name)):
                return f"set {name} in table {table} holds other elements than it should"
        return ""


def _sets(rule_id: str, rule: NftRule) -> list[str]:
    """Return the names of the sets whose elements only fwtop changes."""
    return [
        set_of(rule_id, "on"),
        *(item.name(rule_id) for item in rule.sets if item.elements or item.shared),
    ]


def _read(layout: Layout) -> _Read:
    found = _Read()
    for rule in nf_tables.table_rules(layout.table):
        text = digest(rule.content)
        if rule.comment:
            found.rules.setdefault(rule.comment, []).append(f"{rule.chain} {text}")
        else:
            found.heads.setdefault(rule.chain, []).append(text)
    return found


def _of_set(layout: Layout, name: str) -> list[str]:
    count = total = 0
    for key, is_end in nf_tables.set_elements(layout.table, name):
        count += 1
        total += int(digest(key, b"\1" if is_end else b"\0"), 16)  # whatever their order
        if count >= _MOST_READ:
            return [f"{count} or more"]
    return [f"{count} {total:x}"]


def difference(layout: Layout, filled: Passes) -> str:
    """Name a set of a family that differs from what it was filled with, "" if none does.

    Raises FwtopError.
    """
    for role, wanted in _elements(filled).items():
        name = f"{role}{filled.family}"
        found = nf_tables.set_elements(layout.table, name)
        if len(wanted) > _MAX_COMPARED:
            is_whole = next(found, None) is not None
        else:
            is_whole = _bounds(set(islice(found, 2 * _MAX_COMPARED + 2))) == _bounds(wanted)
        if not is_whole:
            return f"set {name} of the allow-list in table {layout.table} was changed"
    return ""


def _elements(passes: Passes) -> dict[str, set[tuple[bytes, bool]]]:
    """Return the keys of each set; an interval has one where it begins and one behind its end."""
    peers = (
        address.packed + bytes((protocol, 0, 0, 0)) + port.to_bytes(2, "big") + bytes(2)
        for address, protocol, port in passes.peers
    )
    behind, routers = set(), set()
    for item in passes.behind:
        first, last = item.peer.packed + bytes((item.protocol, 0, 0, 0)), item.host.packed
        if item.port == ANY_PORT:
            routers.add((first + last, False))
        else:
            behind.add((first + item.port.to_bytes(2, "big") + bytes(2) + last, False))
    return {
        "allow": _intervals(passes.networks),
        "peers": {(key, False) for key in peers},
        "logins": {
            (address.packed + port.to_bytes(2, "big") + bytes(2), False) for address, port in passes.logins
        },
        "gateways": {(item.packed, False) for item in passes.gateways},
        "behind": behind,
        "routers": routers,
        "hosts": {(item.packed, False) for item in passes.known_hosts},
        "nets": _intervals(passes.known_networks),
    }


def _intervals(prefixes: Sequence[Prefix]) -> set[tuple[bytes, bool]]:
    found: set[tuple[bytes, bool]] = set()
    for item in outermost(prefixes):
        found.add((item.packed, False))
        end = item.value + (1 << item.bits - item.length)
        if not end >> item.bits:
            found.add((end.to_bytes(item.bits // 8, "big"), True))
    return found


def _bounds(keys: set[tuple[bytes, bool]]) -> set[tuple[bytes, bool]]:
    """Leave out the ends that say nothing: where the next interval begins, and at the first address."""
    starts = {key for key, is_end in keys if not is_end}
    return {(key, is_end) for key, is_end in keys if not is_end or (key not in starts and any(key))}
