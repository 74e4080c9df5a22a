"""fwtop's own chains in table raw: hooked before all others, removed with the last rule.

One `iptables-restore --noflush` transaction a family. The state before the first rule (was there a table
raw, a base chain?) is remembered by the caller, so that `undo` can leave the rule set as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from fwtop.guardian.objects.spec import (
    HOOK_CHAINS,
    PORT_CHAINS,
    PREROUTING,
    ROLE_CHAINS,
    RULE_CHAINS,
    SOURCE_CHAINS,
    ChainLine,
)
from fwtop.kernel.netfilter import ipset, nf_tables
from fwtop.kernel.netfilter.iptables import NFT, Variant
from fwtop.kernel.programs import run
from fwtop.model.addresses import roles
from fwtop.model.errors import FwtopError
from fwtop.render.xtables import quote

KNOWN_SETS = {4: "fwtop-known4", 6: "fwtop-known6"}  # all that is listed: whose packets need a closer look
ALLOW_SETS = {4: "fwtop-allow4", 6: "fwtop-allow6"}  # what the operator lists: passes in full
PEER_SETS = {4: "fwtop-allow-peers4", 6: "fwtop-allow-peers6"}  # what was found: address and port
GATEWAY_SETS = {4: "fwtop-allow-gateways4", 6: "fwtop-allow-gateways6"}
_TABLE = "raw"
_TABLES = (HOOK_CHAINS, SOURCE_CHAINS, ROLE_CHAINS, RULE_CHAINS, PORT_CHAINS)
_IN_ORDER = [chains[hook] for hook in HOOK_CHAINS for chains in _TABLES if hook in chains]
_OWN = frozenset(_IN_ORDER)
_ATTEMPTS = 3
_REFUSAL = "is incompatible, use 'nft' tool"
_ALL_THERE = frozenset(HOOK_CHAINS)  # nothing of the table is ours to remove
_COUNTED = re.compile(r"^\[(\d+):(\d+)\] -A (\S+) (.*)$")
_TARGET = re.compile(r"(?:^| )(?:-j|-g) (\S+)$")
_ONLY_PASSING = re.compile(r"(?:^| )-j (?:RETURN$|SET )")
_RULE_SET = re.compile(r"(?:^|--match-set )fwtop-(\d+)-")  # its name says whose line it is
# Neighbour discovery is to IPv6 what ARP is to IPv4; hop limit 255 proves that it comes from the link
# (RFC 4861, 6.1 and 7.1), so no rule may ever cut it.
_NEIGHBOUR_TYPES = (134, 135, 136)


@dataclass(frozen=True, slots=True)
class Listed:
    """A rule in one of fwtop's chains, as the kernel lists it."""

    rule_id: str  # "" for the chain's own lines
    number: int  # position in its chain, from 1
    packets: int
    bytes: int
    handle: int = 0  # of nf_tables
    passing: bool = False  # it only lets packets pass, which is not what a rule counts


@dataclass(frozen=True, slots=True)
class Jump:
    """A rule that jumps or goes to one of fwtop's chains, from any chain."""

    chain: str
    text: str  # its arguments
    handle: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """Table raw of one family, as read at one moment."""

    by_handle: bool = False  # it was read through nfnetlink: lines go by their handles
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


@dataclass(frozen=True, slots=True)
class Chains:
    """fwtop's chains in one iptables variant."""

    variant: Variant

    def read(self, family: int) -> TableState:
        """Read table raw with counters; reading changes nothing.

        In nf_tables only our chains are read, and what leads to them: a foreign rule set of any length, or
        one with native rules that iptables refuses to list, keeps no rule from ending.
        """
        if self.variant.name != NFT:
            return parse_save(run(self.variant.save(family)))
        return _read_nft(family)

    def own_lines(self, family: int) -> TableState:
        """Read only our chains, but not what leads to them."""
        if self.variant.name != NFT:
            return self.read(family)
        return _read_own(family, nf_tables.table_chains(family, _TABLE) or {})[0]

    def refuses(self, family: int) -> bool:
        """Say whether iptables can't list table raw because of somebody's native rules."""
        return self.variant.name == NFT and _REFUSAL in run(self.variant.save(family))

    def writable(self, family: int) -> TableState:
        """Read table raw to change it; raises FwtopError (code 3) where no packet would pass our chains.

        iptables jumps from whatever has the name of a base chain.
        """
        state = self.read(family)
        if self.variant.name == NFT:
            for loose in nf_tables.unhooked_chains(family, _TABLE) & HOOK_CHAINS.keys():
                line = f"chain {loose} of table raw (IPv{family}) is no base chain: no packet passes it"
                raise FwtopError(f"{line}; nothing was changed", 3)
        return state

    def native_chains(self, family: int) -> frozenset[str] | None:
        """Return the chains that table raw has in nf_tables, None if there is no such table.

        `iptables-nft-save` shows base chains that don't exist, so the kernel is asked. Legacy tables can't be
        removed once loaded: for them there is nothing to remember.
        """
        if self.variant.name != NFT:
            return _ALL_THERE
        chains = nf_tables.table_chains(family, _TABLE)
        return frozenset(chains) if chains is not None else None

    def add(self, state: TableState, family: int, lines: Iterable[ChainLine]) -> None:
        """Append a rule's lines, creating and hooking the chains if necessary; raises FwtopError.

        `state` is what `writable` read.
        """
        self.apply(family, add_text(state, family, lines))

    def restore_missing(
        self, state: TableState, family: int, rule_id: str, lines: Iterable[ChainLine]
    ) -> None:
        """Replace a rule's lines and the jumps to them, in one transaction; raises FwtopError.

        As long as all of its lines are there, they keep their counters.
        """
        without, doomed, wanted = {}, [], list(lines)
        for chain, there in state.chains.items():
            doomed += [f"-D {chain} {line.number}" for line in reversed(there) if line.rule_id == rule_id]
            kept = [line for line in there if line.rule_id != rule_id]
            without[chain] = [replace(line, number=number) for number, line in enumerate(kept, 1)]
        mine = state.lines_of(rule_id)
        counted = mine if len(mine) == len(wanted) else ()
        first, *rest = add_text(replace(state, chains=without), family, wanted, counted).splitlines()
        self.apply(family, "\n".join([first, *doomed, *rest, ""]))

    def remove(self, family: int, rule_ids: set[str], before: frozenset[str] | None) -> bool:
        """Delete the lines of rules, and fwtop's chains with the last one; returns whether nothing is left.

        `before` is what `native_chains` said before the first rule: what was not there then goes too,
        if nobody else uses it now. Removing what is not there is no error.
        """
        for attempt in range(_ATTEMPTS):
            state = self.read(family)
            try:
                if not self._remove_once(family, state, rule_ids):
                    break
            except FwtopError:
                if attempt == _ATTEMPTS - 1:  # otherwise somebody changed the table meanwhile
                    raise
        if state.chains:
            return False
        self._leave_as_before(family, state, before)
        return True

    def _remove_once(self, family: int, state: TableState, rule_ids: set[str]) -> bool:
        """Remove the lines of rules that `state` lists; returns whether there were any."""
        if state.by_handle:
            lines = native_removal(state, family, rule_ids)
            if lines:
                run(["nft", "-f", "-"], text="\n".join(lines) + "\n")
            return bool(lines)
        text = remove_text(state, rule_ids)
        if text:
            self.apply(family, text)
        return bool(text)

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
        if before is None and now <= set(unused):
            self._delete_if_empty(inet)

    def _delete_if_empty(self, inet: str) -> None:
        if run(["nft", "list", "table", inet, _TABLE]).split() == ["table", inet, _TABLE, "{", "}"]:
            run(["nft", "delete", "table", inet, _TABLE])


def parse_save(saved: str) -> TableState:
    """Read `iptables-save -c -t raw`."""
    if _REFUSAL in saved:
        raise FwtopError("table raw holds native nftables rules that iptables can't list", 3)
    state = TableState()
    for line in saved.splitlines():
        if line.startswith(":") and line.split()[0][1:] in _OWN:
            state.chains.setdefault(line.split()[0][1:], [])
        counted = _COUNTED.match(line)
        if not counted:
            continue
        packets, size, chain, rest = counted.groups()
        if chain in _OWN:
            lines = state.chains.setdefault(chain, [])
            passing = _ONLY_PASSING.search(rest) is not None
            number = len(lines) + 1
            lines.append(Listed(_rule_id([rest]), number, int(packets), int(size), passing=passing))
        else:
            state.base_chains[chain] = state.base_chains.get(chain, 0) + 1
            target = _TARGET.search(rest)
            if target and target[1] in _OWN:
                _note_jump(state, target[1], Jump(chain, rest), plain=rest == f"-j {target[1]}")
    return state


def _rule_id(texts: Iterable[str]) -> str:
    """Return the id that a set's name, or a line that matches one, carries; "" where there is none."""
    return next((found[1] for text in texts if (found := _RULE_SET.search(text))), "")


def _read_own(family: int, chains: Iterable[str]) -> tuple[TableState, int]:
    """Read our chains through nfnetlink, and how many jumps there are between them; raises FwtopError."""
    state, between = TableState(by_handle=True), 0
    mine = sorted(set(chains) & _OWN)
    of_rules = filter(_RULE_SET.match, ipset.names()) if mine else ()
    names = ipset.numbers_of(of_rules)
    for chain in mine:
        lines = state.chains.setdefault(chain, [])
        for rule in nf_tables.chain_rules(family, _TABLE, chain):
            rule_id = _rule_id(names.get(index, "") for index in rule.sets)
            number, counted = len(lines) + 1, (rule.packets, rule.bytes)
            lines.append(Listed(rule_id, number, *counted, rule.handle, rule.passing))
            between += rule.jump in _OWN
    return state, between


def _read_nft(family: int) -> TableState:
    """Read our chains and the jumps to them through nfnetlink, and no more of others' than that takes."""
    uses = nf_tables.table_chains(family, _TABLE) or {}
    state, between = _read_own(family, uses)
    missing = sum(uses[chain] - len(lines) for chain, lines in state.chains.items()) - between
    for chain in sorted(uses.keys() - state.chains.keys(), key=lambda name: (name not in HOOK_CHAINS, name)):
        for rule in nf_tables.chain_rules(family, _TABLE, chain):
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


def own_lines(family: int, hook: str, *, ports: bool = False) -> dict[str, list[str]]:
    """Return the lines of each of a hook's chains that belong to no rule: the allow-list.

    `ports`: there are protected ports, whose chain all other rules come after.

    Rules with sources of which none is listed come first: what they drop costs no look-up in the allow-list.
    All others cost one; only packets of listed addresses are compared with the roles, which pass by returning
    to the hook. Chains come before those that lead to them.
    """
    incoming = hook == PREROUTING
    to_roles, to_rules = f"-g {ROLE_CHAINS[hook]}", f"-g {RULE_CHAINS[hook]}"
    entry = [f"{'-i' if incoming else '-o'} lo -j RETURN"]
    passing = [_in_set(ALLOW_SETS[family], incoming=incoming)]
    passing += _incoming_roles(family) if incoming else _outgoing_roles(family)
    if family == 6 and incoming:
        entry.append(f"-p ipv6-icmp {to_roles}")  # whose chain asks the rules of sources itself
        neighbours = [f"-p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type {kind}" for kind in _NEIGHBOUR_TYPES]
        passing = [*neighbours, *passing]
    to_sources = [f"-j {SOURCE_CHAINS[hook]}"] if hook in SOURCE_CHAINS else []
    entry += [*to_sources, f"{_in_set(KNOWN_SETS[family], incoming=incoming)} {to_roles}", to_rules]
    port_chain = {PORT_CHAINS[hook]: list[str]()} if ports else {}
    return {
        **port_chain,
        RULE_CHAINS[hook]: [f"-j {name}" for name in port_chain],
        **({SOURCE_CHAINS[hook]: []} if hook in SOURCE_CHAINS else {}),
        ROLE_CHAINS[hook]: [*(f"{condition} -j RETURN" for condition in passing), *to_sources, to_rules],
        HOOK_CHAINS[hook]: entry,
    }


def changed_chain(state: TableState, family: int, hook: str) -> str:
    """Return the first of a hook's chains whose own lines are not as they should be; "" if none is."""
    wanted = own_lines(family, hook, ports=PORT_CHAINS.get(hook) in state.chains)
    changed = (name for name in wanted if not _has_head(state.chains.get(name, []), wanted[name]))
    return next(changed, "")


def _has_head(there: list[Listed], head: list[str]) -> bool:
    return [line.number for line in there if not line.rule_id] == list(range(1, len(head) + 1))


def _incoming_roles(family: int) -> list[str]:
    """Return the conditions of each role (roles.py); ports first, as most packets have others."""
    peer, gateway = _in_set(PEER_SETS[family], ports=True), _in_set(GATEWAY_SETS[family])
    server, client = roles.DHCP_PORTS[family]
    return [
        f"-p tcp ! --syn {peer}",
        f"-p udp --sport {roles.DNS_PORT} --dport {roles.ASKING_PORTS}:65535 {peer}",
        f"-p udp --sport {roles.NTP_PORT} {peer}",
        f"-p udp --sport {server} --dport {client} {peer}",
        f"-p udp -m multiport --dports {','.join(map(str, roles.BFD_PORTS))} {gateway}",
        f"-p tcp --dport {roles.BGP_PORT} {gateway}",
        *(f"-p {number} {gateway}" for number in (roles.ICMP[family], *roles.ROUTING)),
    ]


def _outgoing_roles(family: int) -> list[str]:
    """Return the same for output: a flow that passes one way must be tracked both ways."""
    peer = _in_set(PEER_SETS[family], incoming=False, ports=True)
    gateway = _in_set(GATEWAY_SETS[family], incoming=False)
    numbers = (roles.ICMP[family], *roles.ROUTING)
    return [
        f"-p tcp {peer}",
        f"-p udp {peer}",
        f"-p tcp --sport {roles.BGP_PORT} {gateway}",
        *(f"-p {number} {gateway}" for number in numbers),
    ]


def _in_set(name: str, *, incoming: bool = True, ports: bool = False) -> str:
    side = "src" if incoming else "dst"
    return f"-m set --match-set {name} {f'{side},{side}' if ports else side}"


def add_text(
    state: TableState, family: int, lines: Iterable[ChainLine], counted: Iterable[Listed] = ()
) -> str:
    """Return the transaction that adds a rule's lines to a table in this state.

    `counted` are the lines whose counters they go on with.
    """
    text = ["*raw"]
    wanted = list(lines)
    for hook in dict.fromkeys(line.hook for line in wanted):
        chain, of_ports = HOOK_CHAINS[hook], PORT_CHAINS.get(hook)
        ports = of_ports in state.chains or any(line.chain == of_ports for line in wanted)
        for name, head in own_lines(family, hook, ports=ports).items():
            if name not in state.chains:
                text += [f":{name} - [0:0]", *(f"-A {name} {line}" for line in head)]
            elif not _has_head(state.chains[name], head):
                text += _head_again(name, state.chains[name], head)
        if state.hook_position.get(chain) != 1:
            plain = [
                jump
                for jump in state.jumps.get(chain, ())
                if (jump.chain, jump.text) == (hook, f"-j {chain}")
            ]
            text += [f"-D {hook} -j {chain}"] * len(plain)
            text.append(f"-I {hook} 1 -j {chain}")
    places = _places(state, wanted)
    text += [line_text(line, before, place) for line, before, place in zip_longest(wanted, counted, places)]
    return "\n".join([*text, "COMMIT", ""])


def _places(state: TableState, lines: Iterable[ChainLine]) -> list[int | None]:
    """Return the number that each line gets in its chain, None for the last."""
    found: list[int | None] = []
    before: dict[str, int] = {}  # lines of this transaction by chain
    for line in lines:
        if line.behind is None:
            found.append(None)
            continue
        there = state.chains.get(line.chain, ())
        first = max((item.number for item in there if item.rule_id in line.behind), default=0) + 1
        found.append(first + before.get(line.chain, 0))
        before[line.chain] = before.get(line.chain, 0) + 1
    return found


def _head_again(chain: str, there: list[Listed], head: list[str]) -> list[str]:
    """Return the lines that restore a chain's damaged head, without which the allow-list has no effect."""
    text = [f"-D {chain} {line.number}" for line in reversed(there) if not line.rule_id]
    return text + [f"-I {chain} {number} {line}" for number, line in enumerate(head, 1)]


def line_text(line: ChainLine, before: Listed | None = None, place: int | None = None) -> str:
    """Return a line for `iptables-restore`, with its quoting; its counters go on from `before`.

    It goes to the end of its chain unless it has a `place`.
    """
    counters = ("-c", str(before.packets), str(before.bytes)) if before is not None else ()
    how = ("-A", line.chain) if place is None else ("-I", line.chain, str(place))
    return " ".join(map(quote, (*how, *counters, *line.match, *line.target)))


def remove_text(state: TableState, rule_ids: set[str]) -> str:
    """Return the transaction that removes rules, and a hook's chains with its last one ("" if nothing).

    Lines of our chains go by number, from the last: what the kernel prints of a match need not be what it
    reads. Jumps are in chains of others, who may insert something meanwhile: all of them go by what they say.
    """
    kept, unused = _by_use(state, rule_ids)
    text = []
    for chain in kept:
        doomed = [line.number for line in state.chains[chain] if line.rule_id in rule_ids]
        text += [f"-D {chain} {number}" for number in reversed(doomed)]
    text += [f"-D {jump.chain} {jump.text}" for chain in unused for jump in state.jumps.get(chain, ())]
    text += [f"-F {chain}" for chain in unused]
    text += [f"-X {chain}" for chain in unused]
    return "\n".join(["*raw", *text, "COMMIT", ""]) if text else ""


def native_removal(state: TableState, family: int, rule_ids: set[str]) -> list[str]:
    """Return the same for nft, by handles: iptables refuses a table with native rules."""
    table = f"{'ip' if family == 4 else 'ip6'} {_TABLE}"
    kept, unused = _by_use(state, rule_ids)
    text: list[str] = []
    for chain in kept:
        doomed = [line.handle for line in state.chains[chain] if line.rule_id in rule_ids]
        text += [f"delete rule {table} {chain} handle {handle}" for handle in doomed]
    for chain in unused:
        jumps = state.jumps.get(chain, ())
        text += [f"delete rule {table} {jump.chain} handle {jump.handle}" for jump in jumps]
    text += [f"flush chain {table} {chain}" for chain in unused]
    return text + [f"delete chain {table} {chain}" for chain in unused]


def _by_use(state: TableState, rule_ids: set[str]) -> tuple[list[str], list[str]]:
    """Return the chains of hooks that keep a rule when these go, and the chains of all other hooks."""
    kept: list[str] = []
    unused: list[str] = []
    for hook in HOOK_CHAINS:
        mine = [table[hook] for table in _TABLES if table.get(hook) in state.chains]
        staying = {line.rule_id for chain in mine for line in state.chains[chain]} - rule_ids - {""}
        (kept if staying else unused).extend(mine)
    return kept, unused
