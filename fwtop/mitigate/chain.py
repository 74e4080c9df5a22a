"""The chains of our own in table raw, hooked first, gone with the last rule.

One `iptables-restore --noflush` transaction a family. The state before the first rule (was there a table
raw, a base chain?) is remembered by the caller, so that `undo` can leave the rule set as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fwtop.mitigate.artifacts import HOOK_CHAINS, PREROUTING, ChainLine, comment_of
from fwtop.mitigate.run import CommandError, run
from fwtop.mitigate.variants import NFT, Variant
from fwtop.model.errors import FwtopError
from fwtop.model.xtables import quote

ALLOW_SETS = {4: "fwtop-allow4", 6: "fwtop-allow6"}
_ALL_THERE = frozenset(HOOK_CHAINS)  # nothing of the table is ours to remove
_COUNTED = re.compile(r"^\[(\d+):(\d+)\] -A (\S+) (.*)$")
_COMMENT = re.compile(r'--comment "?fwtop-(\d+)"?')
# Neighbour discovery is to IPv6 what ARP is to IPv4; hop limit 255 proves that it comes from the link
# (RFC 4861, 6.1 and 7.1), so no rule may ever cut it.
_NEIGHBOUR_TYPES = (134, 135, 136)


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of ours as the kernel has it."""

    rule_id: str  # "" for the chain's own lines
    number: int  # position in its chain, from 1
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableState:
    """Table raw of one family as it is now."""

    base_chains: dict[str, int] = field(default_factory=dict)  # base chain in the kernel → lines in it
    chains: dict[str, list[Listed]] = field(default_factory=dict)  # own chain → its lines
    hook_position: dict[str, int] = field(default_factory=dict)  # own chain → place of the jump, from 1

    def lines_of(self, rule_id: str) -> list[Listed]:
        """Return a rule's lines over all hooks."""
        return [line for lines in self.chains.values() for line in lines if line.rule_id == rule_id]

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules that have lines here."""
        return {line.rule_id for lines in self.chains.values() for line in lines if line.rule_id}


@dataclass(frozen=True, slots=True)
class Chains:
    """Our chains in one iptables variant."""

    variant: Variant

    def read(self, family: int) -> TableState:
        """Read table raw with counters; reading changes nothing."""
        return parse_save(run(self.variant.save(family)))

    def native_chains(self, family: int) -> frozenset[str] | None:
        """Return the chains that table raw has in nf_tables, None if there is no such table.

        `iptables-nft-save` shows base chains that don't exist, so nft is asked. Legacy tables can't be
        removed once loaded: for them there is nothing to remember.
        """
        if self.variant.name != NFT:
            return _ALL_THERE
        inet = "ip" if family == 4 else "ip6"
        try:
            listing = run(["nft", "list", "table", inet, "raw"])
        except CommandError:
            return None
        return frozenset(re.findall(r"^\tchain (\S+) \{", listing, re.MULTILINE))

    def add(self, family: int, rule_id: str, lines: Iterable[ChainLine]) -> None:
        """Append a rule's lines, hooking our chains first where that has not been done."""
        self.apply(family, add_text(self.read(family), family, rule_id, lines))

    def remove(self, family: int, rule_ids: set[str], before: frozenset[str] | None) -> bool:
        """Delete the lines of rules, and our chains with the last of them; True: nothing of ours is left.

        `before` is what `native_chains` said before the first rule: what was not there then goes too,
        if nobody else uses it now. Removing what is not there is no error.
        """
        state = self.read(family)
        text = remove_text(state, rule_ids)
        if text:
            self.apply(family, text)
            state = self.read(family)
        if state.chains:
            return False
        self._leave_as_before(family, state, before)
        return True

    def apply(self, family: int, transaction: str) -> None:
        """Run one transaction; raises FwtopError with what iptables said."""
        run(self.variant.restore(family), text=transaction)

    def _leave_as_before(self, family: int, state: TableState, before: frozenset[str] | None) -> None:
        if self.variant.name != NFT or before == _ALL_THERE:
            return
        inet, now = ("ip" if family == 4 else "ip6"), self.native_chains(family)
        if now is None:
            return
        ours = {hook for hook in HOOK_CHAINS if hook in now and (before is None or hook not in before)}
        unused = [hook for hook in sorted(ours) if not state.base_chains.get(hook)]
        if unused:
            self.apply(family, "*raw\n" + "".join(f"-X {hook}\n" for hook in unused) + "COMMIT\n")
        if before is None and run(["nft", "list", "table", inet, "raw"]).split() == _empty_table(inet):
            run(["nft", "delete", "table", inet, "raw"])


def _empty_table(inet: str) -> list[str]:
    return ["table", inet, "raw", "{", "}"]


def parse_save(saved: str) -> TableState:
    """Read `iptables-save -c -t raw`."""
    if "is incompatible, use 'nft' tool" in saved:
        line = "table raw holds native nftables rules that iptables can't handle; nothing was changed"
        raise FwtopError(line, 3)
    own = set(HOOK_CHAINS.values())
    state = TableState()
    for line in saved.splitlines():
        if line.startswith(":") and line.split()[0][1:] in own:
            state.chains.setdefault(line.split()[0][1:], [])
        counted = _COUNTED.match(line)
        if not counted:
            continue
        packets, size, chain, rest = counted.groups()
        if chain in own:
            lines = state.chains.setdefault(chain, [])
            comment = _COMMENT.search(rest)
            rule_id = comment.group(1) if comment else ""
            lines.append(Listed(rule_id, len(lines) + 1, int(packets), int(size)))
        else:
            state.base_chains[chain] = state.base_chains.get(chain, 0) + 1
            target = rest.removeprefix("-j ")
            if target in own:
                state.hook_position[target] = state.base_chains[chain]
    return state


def chain_head(family: int, hook: str) -> list[str]:
    """Return the lines that every chain of ours begins with: what must never be cut off."""
    chain, incoming = HOOK_CHAINS[hook], hook == PREROUTING
    interface, side = ("-i", "src") if incoming else ("-o", "dst")
    lines = [f"-A {chain} {interface} lo -j RETURN"]
    lines.append(f"-A {chain} -m set --match-set {ALLOW_SETS[family]} {side} -j RETURN")
    if family == 6 and incoming:
        discovery = f"-A {chain} -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type"
        lines += [f"{discovery} {kind} -j RETURN" for kind in _NEIGHBOUR_TYPES]
    return lines


def add_text(state: TableState, family: int, rule_id: str, lines: Iterable[ChainLine]) -> str:
    """Return the transaction that adds a rule's lines to the table as it is."""
    text = ["*raw"]
    wanted = list(lines)
    for hook in dict.fromkeys(line.hook for line in wanted):
        chain = HOOK_CHAINS[hook]
        if chain not in state.chains:
            text += [f":{chain} - [0:0]", *chain_head(family, hook)]
        if state.hook_position.get(chain) != 1:
            if chain in state.hook_position:
                text.append(f"-D {hook} {state.hook_position[chain]}")
            text.append(f"-I {hook} 1 -j {chain}")
    text += [line_text(line, rule_id) for line in wanted]
    return "\n".join([*text, "COMMIT", ""])


def line_text(line: ChainLine, rule_id: str) -> str:
    """Return a line of `iptables-restore`, arguments quoted as it wants them."""
    comment = ("-m", "comment", "--comment", comment_of(rule_id))
    return " ".join(map(quote, ("-A", HOOK_CHAINS[line.hook], *line.match, *comment, *line.target)))


def remove_text(state: TableState, rule_ids: set[str]) -> str:
    """Return the transaction that removes rules, and each chain that none is left in ("" if nothing).

    Lines go by number, from the last: what the kernel prints of a match need not be what it reads.
    """
    text = []
    hooks = {chain: hook for hook, chain in HOOK_CHAINS.items()}
    for chain, lines in state.chains.items():
        remaining = {line.rule_id for line in lines} - rule_ids - {""}
        if remaining:
            doomed = [line.number for line in lines if line.rule_id in rule_ids]
            text += [f"-D {chain} {number}" for number in reversed(doomed)]
            continue
        if chain in state.hook_position:
            text.append(f"-D {hooks[chain]} {state.hook_position[chain]}")
        text += [f"-F {chain}", f"-X {chain}"]
    return "\n".join(["*raw", *text, "COMMIT", ""]) if text else ""
