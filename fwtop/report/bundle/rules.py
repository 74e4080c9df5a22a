"""The rules that helped, for machines without fwtop: as a table of nftables, and for iptables and ipset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.report.summary import Digest
from fwtop.rules import kinds
from fwtop.rules.exports import nft, xtables
from fwtop.rules.nft_objects import set_lines
from fwtop.rules.objects import PREROUTING

CHAIN = "FWTOP-REPORT"
TABLE = "inet fwtop-report"
_SETS = "report-"  # begins their names; fwtop takes what has its own names out


def nftables_text(digest: Digest) -> str:
    """Write a file for `nft -f`; rules that nftables can't express stand in it as comments."""

    def written(rule: Rule) -> Iterator[str]:
        made = nft.plain(rule)
        for item in made.sets:
            yield from set_lines(TABLE, rule.id, item)
        yield from (f"add rule {TABLE} dropped {text}" for _, text in made.lines)

    return _text(
        "#!/usr/sbin/nft -f",
        f"# What helped in session {_comment(digest.info.id)}; 'nft delete table {TABLE}' removes it.",
        "# Without fwtop's allow-list: whoever is in a list is dropped, even your own addresses.",
        *(f"{command} table {TABLE}" for command in ("add", "delete", "add")),
        "# before fragments are put together, as what is dropped needs no such work",
        f"add chain {TABLE} dropped {{ type filter hook prerouting priority -450; policy accept; }}",
        *_rules(digest, "nftables", written),
    )


def ipset_text(digest: Digest) -> str:
    """Write the rules' sets for `ipset -exist restore`, which takes no comments."""

    def written(rule: Rule) -> Iterator[str]:
        for spec in xtables.plain(rule, _SETS).sets:
            yield from xtables.set_lines(spec)

    return _text(*(line for line in _rules(digest, "ipset", written) if not line.startswith("#")))


def iptables_text(digest: Digest, family: int) -> str:
    """Write a file for `iptables-restore --noflush`; what iptables can't express is a comment in it."""
    program = xtables.PROGRAMS[family]

    def written(rule: Rule) -> Iterator[str]:
        for line in xtables.plain(rule, _SETS).lines:
            if line.family == family and line.hook == PREROUTING:
                yield xtables.line_text(CHAIN, line)

    return _text(
        f"# What helped in session {_comment(digest.info.id)}; load rules.ipset first. To remove it:",
        f"# {program} -t raw -D PREROUTING -j {CHAIN}",
        f"# {program} -t raw -F {CHAIN}; {program} -t raw -X {CHAIN}",
        "# Without fwtop's allow-list: whoever is in a set is dropped, even your own addresses.",
        "*raw",
        f":{CHAIN} - [0:0]",
        f"-I PREROUTING -j {CHAIN}",
        *_rules(digest, program, written),
        "COMMIT",
    )


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _rules(digest: Digest, program: str, written: Callable[[Rule], Iterator[str]]) -> Iterator[str]:
    """Yield the lines of each rule that dropped anything, after a comment, or why there are none."""
    for effect in digest.effects:
        if not effect.packets:
            continue
        rule = effect.rule
        yield f"# Rule {_comment(rule.id)}: {_comment(rule.summary)}"
        if effect.left_out:
            yield f"# {effect.left_out} are in the record"
        try:
            yield from _lines(replace(rule, id=_number(rule)), program, written)
        except FwtopError as error:
            yield f"# {program} can't do this: {_comment(str(error).removesuffix('; nothing was installed'))}"


def _lines(rule: Rule, program: str, written: Callable[[Rule], Iterator[str]]) -> Sequence[str]:
    if not (kinds.of(rule.kind).is_filter or kinds.of(rule.kind).untracks):
        return [f"# A rule of kind {rule.kind.value} is no filter: see rules.sh"]
    return [*written(rule)] or [f"# Nothing for {program}."]


def _comment(text: str) -> str:
    return safe_text(text, limit=200)


def _number(rule: Rule) -> str:
    return "".join(letter for letter in rule.id if letter.isdecimal() and letter.isascii())[:9] or "0"
