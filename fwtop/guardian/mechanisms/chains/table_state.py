"""Table raw as the kernel has it: the lines in fwtop's own chains, and what leads to them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.guardian.mechanisms.mechanism import digest
from fwtop.model.errors import FwtopError
from fwtop.netfilter import ipset, nf_tables
from fwtop.netfilter.saved import Saved
from fwtop.rules.objects import HOOK_CHAINS, OWN_CHAINS

TABLE = "raw"
_IN_ORDER = tuple(name for chains in OWN_CHAINS.values() for name in chains)
_OWN = frozenset(_IN_ORDER)
_TARGET = re.compile(r"(?:^| )(?:-j|-g) (\S+)$")
_ONLY_PASSING = re.compile(r"(?:^| )-j (?:RETURN$|SET )")
_RULE_SET = re.compile(r"(?:^|--match-set )fwtop-(\d+)-")  # its name says whose line it is


class Listed(Struct, frozen=True):
    """A rule in one of fwtop's chains, as the kernel lists it."""

    rule_id: str  # "" for the chain's own lines
    number: int  # position in its chain, from 1
    packets: int
    bytes: int
    handle: int = 0  # of nf_tables
    passing: bool = False  # it only lets packets pass, which is not what a rule counts
    target: str = ""  # the chain that it jumps or goes to, or RETURN
    content: str = ""  # a digest of what it says


class Jump(Struct, frozen=True):
    """A rule that jumps or goes to one of fwtop's chains, from any chain."""

    chain: str
    text: str  # its arguments
    handle: int = 0


class TableState(Struct, frozen=True):
    """Table raw of one family, as read at one moment."""

    by_handle: bool = False  # it was read through nfnetlink: lines go by their handles
    dormant: bool = False  # somebody switched it off (nft(8)): packets pass none of its chains
    base_chains: dict[str, int] = field(default_factory=dict)  # base chain → lines in it, as far as read
    chains: dict[str, list[Listed]] = field(default_factory=dict)  # own chain → its lines
    hook_position: dict[str, int] = field(default_factory=dict)  # own chain → place of its first jump, from 1
    jumps: dict[str, list[Jump]] = field(default_factory=dict)  # own chain → all that lead to it

    def lines_of(self, rule_id: str) -> list[Listed]:
        """Return a rule's lines over all hooks, those for incoming packets first."""
        listed = (line for name in _IN_ORDER for line in self.chains.get(name, ()))
        return [line for line in listed if line.rule_id == rule_id]

    def chains_of(self, rule_id: str) -> set[str]:
        """Return the chains that hold lines of a rule."""
        return {name for name, lines in self.chains.items() if any(line.rule_id == rule_id for line in lines)}

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules that have lines here."""
        return {line.rule_id for lines in self.chains.values() for line in lines if line.rule_id}


def wake_command(family: int) -> str:
    """Return what makes a dormant table raw active again: not fwtop's to do, as others' rules are in it."""
    return f"'nft add table {native(family)}'"


def is_dormant(family: int) -> bool:
    """Return whether somebody switched table raw of nf_tables off: packets pass none of its chains then."""
    return nf_tables.is_dormant(native(family))


def native(family: int) -> str:
    """Return how nf_tables names table raw."""
    return f"{'ip' if family == 4 else 'ip6'} {TABLE}"


def table_of(saved: Saved) -> TableState:
    """Find our chains in what iptables-save printed of table raw; raises FwtopError where it refused."""
    if saved.refused:
        raise FwtopError("table raw holds native nftables rules that iptables can't list", 3)
    state = TableState(chains={name: [] for _, name in saved.chains if name in _OWN})
    for line, counted in saved.lines.items():
        rest, found = line.text, _TARGET.search(line.text)
        target = found[1] if found else ""
        if line.chain in _OWN:
            passing, said = _ONLY_PASSING.search(rest) is not None, digest(rest.encode())
            listed = Listed(
                _rule_id([rest]), line.number, *counted, passing=passing, target=target, content=said
            )
            state.chains[line.chain].append(listed)
        else:
            state.base_chains[line.chain] = line.number
            if target in _OWN:
                _note_jump(state, target, Jump(line.chain, rest), plain=rest == f"-j {target}")
    return state


def _rule_id(texts: Iterable[str]) -> str:
    """Return the id that a set's name, or a line that matches one, carries; "" where there is none."""
    return next((found[1] for text in texts if (found := _RULE_SET.search(text))), "")


def read_own(family: int, chains: Iterable[str]) -> tuple[TableState, int]:
    """Read our chains through nfnetlink, and how many jumps there are between them; raises FwtopError."""
    state, between = TableState(by_handle=True), 0
    mine = sorted(set(chains) & _OWN)
    of_rules = filter(_RULE_SET.match, ipset.names()) if mine else ()
    names = ipset.numbers_of(of_rules)
    for chain in mine:
        lines = state.chains.setdefault(chain, [])
        for rule in nf_tables.rules(native(family), chain):
            rule_id = _rule_id(names.get(index, "") for index in rule.sets)
            number, counted = len(lines) + 1, (rule.packets, rule.bytes)
            target = rule.jump or ("RETURN" if rule.passing else "")
            said = digest(rule.content)
            lines.append(Listed(rule_id, number, *counted, rule.handle, rule.passing, target, said))
            between += rule.jump in _OWN
    return state, between


def read_nft(family: int) -> TableState:
    """Read our chains and the jumps to them through nfnetlink, and no more of others' than that takes."""
    uses = nf_tables.table_chains(native(family)) or {}
    state, between = read_own(family, uses)
    state = replace(state, dormant=is_dormant(family))
    missing = sum(uses[chain] - len(lines) for chain, lines in state.chains.items()) - between
    for chain in sorted(uses.keys() - state.chains.keys(), key=lambda name: (name not in HOOK_CHAINS, name)):
        for rule in nf_tables.rules(native(family), chain):
            state.base_chains[chain] = state.base_chains.get(chain, 0) + 1
            if rule.jump in state.chains:
                text = f"-j {rule.jump}" if rule.plain else ""
                _note_jump(state, rule.jump, Jump(chain, text, rule.handle), plain=rule.plain)
                missing -= 1
            if missing <= 0:
                break
    return state


def _note_jump(state: TableState, own: str, jump: Jump, *, plain: bool) -> None:
    """Note a jump; one without conditions from the hook's base chain is what hooks the chain."""
    state.jumps.setdefault(own, []).append(jump)
    if plain and HOOK_CHAINS.get(jump.chain) == own:
        state.hook_position.setdefault(own, state.base_chains[jump.chain])
