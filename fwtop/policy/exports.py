"""A policy for machines without fwtop: an nftables table, files for ipset and iptables-restore, or a script.

Exports hold what the policy says and the operator's allow-list. What fwtop finds by itself (sessions, name
servers, gateways) is not in them: it changes. They are written piece by piece, so that long lists take
little memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import ALLOW_FILE, read_allow_file
from fwtop.model.addresses.address import Prefix, of_family, of_ports, says_more
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, prefix_text
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.policy.document import Policy
from fwtop.rules import nft_objects
from fwtop.rules.exports import nft
from fwtop.rules.exports.xtables import PROGRAMS, Plain, line_text, plain, set_lines
from fwtop.rules.kind import OUTPUT
from fwtop.rules.nft_objects import TYPES, list_set, list_set_of
from fwtop.rules.xtables import create_line

_FAMILIES = (4, 6)
_ALLOW = "allow"
_AT_ONCE = 10_000  # lines
TABLE = "inet exported-policy"
_CHAIN, _PORTS, _OUT, _OPEN = "POLICY", "POLICY-PORTS", "POLICY-OUT", "POLICY-OPEN"
_NEW = "policy-"  # begins the names of sets; fwtop takes what has its own names out


def write(
    policy: Policy, name: str, format: str, output: Path | None, allow_file: Path = Path(ALLOW_FILE)
) -> None:
    """Write a policy in one of the formats; raises FwtopError, and old files are as they were."""
    files = documents(policy, name, format, allow_file)
    if len(files) > 1 and output is None:
        raise FwtopError("iptables takes three files: name a directory with -o; nothing was written", 2)
    if len(files) > 1 and output is not None:
        try:
            output.mkdir(exist_ok=True)
        except OSError as error:
            line = f"cannot make directory {safe_text(output)}: {error.strerror}; nothing was written"
            raise FwtopError(line) from None
    for own, lines in files.items():
        if output is None:
            write_lines(sys.stdout, lines)
        else:
            path = output / own if len(files) > 1 else output
            _write_file(path, lines, 0o755 if format == "sh" else 0o644)


def documents(policy: Policy, name: str, format: str, allow_file: Path) -> dict[str, Iterator[str]]:
    """Return the lines of the files that a format has, by their names; raises FwtopError."""
    found = _exported(policy, allow_file)
    if format == "nft":
        return {"policy.nft": _nft_lines(found, name)}
    if format == "sh":
        return {"policy.sh": _script_lines(found, name)}
    tables = {f"policy.{PROGRAMS[family]}": _xtables_lines(found, family, name) for family in _FAMILIES}
    return {"policy.ipset": _ipset_lines(found, name), **tables}


def _write_file(path: Path, lines: Iterator[str], mode: int) -> None:
    try:
        with replacing(path, permissions=mode) as file:
            write_lines(file, lines)
    except OSError as error:
        line = f"cannot write {safe_text(path)}: {error.strerror}; the file is as it was"
        raise FwtopError(line) from None


def write_lines(file: IO[str], lines: Iterable[str]) -> None:
    """Write lines in batches; raises OSError, and FwtopError for what a format can't express."""
    left = iter(lines)
    while part := [*islice(left, _AT_ONCE)]:
        file.write("\n".join([*part, ""]))


class _Exported(Struct, frozen=True):
    """A policy with numbered rules; those on ports in the order they decide."""

    ports: tuple[Rule, ...]
    others: tuple[Rule, ...]
    lists: dict[str, Sequence[Prefix]]  # those that rules use, and the allow-list

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules."""
        return self.ports + self.others

    def entries(self, name: str, family: int) -> Sequence[Prefix]:
        """Return a list's entries of one family."""
        entries = self.lists[name]
        return entries.single.of_family(family) if says_more(entries) else of_family(entries, family, ())


def _exported(policy: Policy, allow_file: Path) -> _Exported:
    rules = [replace(rule, id=str(number)) for number, rule in enumerate(policy.rules, 1)]
    ports = [rule for rule in rules if rule.protection is not None]
    ports.sort(key=lambda rule: (-rule.protection.priority if rule.protection else 0, -int(rule.id)))
    used = {name for rule in rules for name in rule.lists_used}
    listed = tuple(entry.prefix for entry in read_allow_file(allow_file)[0] if entry.prefix.length)
    rules = [_with_kind_of_list(rule, policy) for rule in rules]
    return _Exported(
        tuple(ports),
        tuple(rule for rule in rules if rule.protection is None),
        {_ALLOW: listed, **{name: policy.lists[name] for name in policy.lists if name in used}},
    )


def _with_kind_of_list(rule: Rule, policy: Policy) -> Rule:
    """Give a rule the entries of its list where these say more than who sends: so do its lines."""
    entries = policy.lists.get(rule.list_name or "", ())
    return replace(rule, match=replace(rule.match, sources=entries)) if says_more(entries) else rule


def _heading(name: str, how: str) -> Iterator[str]:
    """Yield the first lines of a file: what it is, and how it is used."""
    yield f"# The policy {safe_text(name)}, written by 'fwtop policy export'."
    yield f"# {how}"
    yield "# Of the allow-list it has what the operator lists, not what fwtop finds, as SSH sessions."


def _comment(rule: Rule) -> str:
    return f"# {rule.id}: {safe_text(rule.summary, limit=200)}"


def _nft_lines(policy: _Exported, name: str) -> Iterator[str]:
    """Yield the input of `nft -f`; raises FwtopError (code 2) before the first line if nft can't say it."""
    rules = [(rule, _in_nft(rule)) for rule in policy.rules]
    yield from _heading(name, f"Load it with nft -f; take it out with: nft delete table {TABLE}")
    yield f"add table {TABLE}"
    yield f"delete table {TABLE}"
    yield f"add table {TABLE}"
    for listed in policy.lists:
        for family in _FAMILIES:
            yield from _list_lines(listed, family, policy.entries(listed, family))
    for rule, made in rules:
        for item in made.sets:
            yield from nft_objects.set_lines(TABLE, rule.id, item) if not item.shared else ()
    yield from _chains()
    for rule, made in rules:
        yield _comment(rule)
        yield from (f"add rule {TABLE} {chain} {text}" for chain, text in made.lines)


def _list_lines(name: str, family: int, entries: Sequence[Prefix]) -> Iterator[str]:
    own = f"{TABLE} {list_set_of(name, family)}"
    if says_more(entries):
        made = list_set(family, entries, own)[1]
        kind, merged, elements = made.kind, "", made.elements
    else:
        kind, merged, elements = TYPES[family], " auto-merge;", tuple(map(prefix_text, entries))
    yield f"add set {own} {{ type {kind}; flags interval;{merged} }}"
    for start in range(0, len(elements), ATTACH_ABOVE):
        yield f"add element {own} {{ {', '.join(elements[start : start + ATTACH_ABOVE])} }}"


def _chains() -> Iterator[str]:
    for chain, hook in (
        (nft.PORTS, ""),
        (nft.RAW, "type filter hook prerouting priority raw; policy accept;"),
        (nft.OUT, "type filter hook output priority raw; policy accept;"),
        (nft.OPEN, "type filter hook prerouting priority mangle; policy accept;"),
    ):
        yield f"add chain {TABLE} {chain}" + (f" {{ {hook} }}" if hook else "")
    yield f'add rule {TABLE} {nft.OUT} oif "lo" return'
    for chain in (nft.RAW, nft.OPEN):
        yield f'add rule {TABLE} {chain} iif "lo" return'
        # Without neighbour discovery there is no network.
        yield f"add rule {TABLE} {chain} icmpv6 type {{ 134, 135, 136 }} ip6 hoplimit 255 return"
        for family, ip in ((4, "ip"), (6, "ip6")):
            yield f"add rule {TABLE} {chain} {ip} saddr @{list_set_of(_ALLOW, family)} return"
    yield f"add rule {TABLE} {nft.RAW} jump {nft.PORTS}"


def _in_nft(rule: Rule) -> nft.Plain:
    try:
        return nft.plain(rule)
    except FwtopError as error:
        why = str(error).partition("; nothing was ")[0]
        line = f"nftables can't say '{rule.summary}': {why}; nothing was written; use --format iptables or sh"
        raise FwtopError(line, 2) from None


def _ipset_lines(policy: _Exported, name: str) -> Iterator[str]:
    yield from _heading(name, "Load it first: ipset -exist restore < policy.ipset")
    yield from _set_lines(policy)


def _xtables_lines(policy: _Exported, family: int, name: str) -> Iterator[str]:
    program = PROGRAMS[family]
    yield from _heading(name, f"Load it once, after the sets: {program}-restore --noflush < policy.{program}")
    yield from _tables(policy, family)


def _script_lines(policy: _Exported, name: str) -> Iterator[str]:
    """Yield a shell script that puts the policy in, again if it is there, or takes it out."""
    yield "#!/bin/sh"
    yield from _heading(name, "Run it as root; with the argument 'remove' it takes the policy out.")
    yield "set -eu"
    yield ""
    yield "# It needs these programs, and changes nothing without one of them."
    yield "for program in ipset iptables iptables-restore ip6tables ip6tables-restore; do"
    yield '  command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 1; }'
    yield "done"
    yield ""
    yield "# Chains and sets have names of their own; nothing else is touched."
    yield "take_out() {"
    yield "  for program in iptables ip6tables; do"
    for table, hook, chain in _hooks():
        yield f"    while $program -t {table} -D {hook} -j {chain} 2>/dev/null; do :; done"
    for command in ("-F", "-X"):
        for table, chain in (("raw", _CHAIN), ("raw", _PORTS), ("raw", _OUT), ("mangle", _OPEN)):
            yield f"    $program -t {table} {command} {chain} 2>/dev/null || :"
    yield "  done"
    yield "  for set in $(ipset list -n); do"
    yield f'    case $set in {_NEW}*) ipset destroy "$set" ;; esac'
    yield "  done"
    yield "}"
    yield ""
    yield "take_out"
    yield '[ "${1:-}" != remove ] || exit 0'
    yield ""
    yield "ipset restore <<'END'"
    yield from _set_lines(policy)
    yield "END"
    for family, program in PROGRAMS.items():
        yield ""
        yield f"{program}-restore --noflush <<'END'"
        yield from _tables(policy, family)
        yield "END"


def _hooks() -> tuple[tuple[str, str, str], ...]:
    return (("raw", "PREROUTING", _CHAIN), ("raw", "OUTPUT", _OUT), ("mangle", "PREROUTING", _OPEN))


def _set_lines(policy: _Exported) -> Iterator[str]:
    for name in policy.lists:
        for family in _FAMILIES:
            entries = policy.entries(name, family)
            own = _list_name(name, family)
            kind = entries.set_type if says_more(entries) else "hash:net"
            yield create_line(own, family, len(entries), None, kind)
            yield from (f"add {own} {text}" for text in _element_texts(entries))
    for rule in policy.ports:
        yield from (line for spec in _plain(policy, rule).sets if not spec.shared for line in set_lines(spec))


def _element_texts(entries: Sequence[Prefix]) -> Iterator[str]:
    """Yield a list's entries, as kernels look them up, as ipset(8) writes elements."""
    if of_ports(entries):
        names = {6: "tcp", 17: "udp"}
        yield from (f"{one.prefix},{names[one.protocol]}:{one.low}" for one in entries.entries())
    elif says_more(entries):
        yield from map(str, entries.entries())
    else:
        yield from map(prefix_text, entries)


def _list_name(name: str, family: int) -> str:
    return f"{_NEW}{name}-{family}"


def _plain(policy: _Exported, rule: Rule) -> Plain:
    return plain(rule, _NEW, policy.lists)


def _tables(policy: _Exported, family: int) -> Iterator[str]:
    made = {
        rule.id: [line for line in _plain(policy, rule).lines if line.family == family]
        for rule in policy.rules
    }
    has_answers = any(line.hook == OUTPUT for lines in made.values() for line in lines)
    is_listed = f"-m set --match-set {_list_name(_ALLOW, family)} src -j RETURN"
    yield "*raw"
    yield from (f":{chain} - [0:0]" for chain in (_CHAIN, _PORTS, *[_OUT] * has_answers))
    yield f"-I PREROUTING 1 -j {_CHAIN}"
    yield f"-A {_CHAIN} -i lo -j RETURN"
    if family == 6:  # without neighbour discovery there is no network
        for kind in (134, 135, 136):
            yield f"-A {_CHAIN} -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type {kind} -j RETURN"
    yield f"-A {_CHAIN} {is_listed}"
    yield f"-A {_CHAIN} -j {_PORTS}"
    if has_answers:
        yield f"-I OUTPUT 1 -j {_OUT}"
        yield f"-A {_OUT} -o lo -j RETURN"
    for rule in policy.rules:
        if rule.connections is None:
            own = _CHAIN if rule.protection is None else _PORTS
            yield _comment(rule)
            yield from (line_text(_OUT if line.hook == OUTPUT else own, line) for line in made[rule.id])
    yield "COMMIT"
    limits = [rule for rule in policy.others if rule.connections is not None]
    if not limits:
        return
    yield "*mangle"
    yield f":{_OPEN} - [0:0]"
    yield f"-I PREROUTING 1 -j {_OPEN}"
    yield f"-A {_OPEN} -i lo -j RETURN"
    yield f"-A {_OPEN} {is_listed}"
    for rule in limits:
        if made[rule.id]:
            yield _comment(rule)
            yield from (line_text(_OPEN, line) for line in made[rule.id])
    yield "COMMIT"
