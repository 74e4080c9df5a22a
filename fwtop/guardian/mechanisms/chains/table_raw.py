"""Table raw: its lines as the kernel has them, the chains' own ones, and what adds and removes rules' lines.

What is written is text only; of the kernel only fwtop's own chains are read, and what leads to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.guardian.mechanisms.mechanism import digest
from fwtop.model.addresses import roles
from fwtop.model.errors import FwtopError
from fwtop.netfilter import ipset, nf_tables
from fwtop.netfilter.saved import Saved
from fwtop.rules.kind import (
    HOOK_CHAINS,
    LISTED_CHAINS,
    OWN_CHAINS,
    PORT_CHAINS,
    PREROUTING,
    ROLE_CHAINS,
    RULE_CHAINS,
    SOURCE_CHAINS,
    ChainLine,
)
from fwtop.rules.xtables import quote

TABLE = "raw"
_IN_ORDER = tuple(name for chains in OWN_CHAINS.values() for name in chains)
_OWN = frozenset(_IN_ORDER)
_TARGET = re.compile(r"(?:^| )(?:-j|-g) (\S+)$")
_ONLY_PASSING = re.compile(r"(?:^| )-j (?:RETURN$|SET )")
_RULE_SET = re.compile(r"(?:^|--match-set )fwtop-(\d+)-")  # its name says whose line it is
KNOWN_SETS = {4: "fwtop-known4", 6: "fwtop-known6"}  # all that is listed: whose packets need a closer look
ALLOW_SETS = {4: "fwtop-allow4", 6: "fwtop-allow6"}  # what the operator lists: passes in full
PEER_SETS = {4: "fwtop-allow-peers4", 6: "fwtop-allow-peers6"}  # what was found: address and port
LOGIN_SETS = {4: "fwtop-allow-logins4", 6: "fwtop-allow-logins6"}  # who is logged in, and the port here
BEHIND_SETS = {4: "fwtop-allow-behind4", 6: "fwtop-allow-behind6"}  # a peer, its port, and a host behind
GATEWAY_SETS = {4: "fwtop-allow-gateways4", 6: "fwtop-allow-gateways6"}
# Neighbour discovery is to IPv6 what ARP is to IPv4; hop limit 255 proves that it comes from the link
# (RFC 4861, 6.1 and 7.1), so no rule may ever cut it.
_NEIGHBOUR_TYPES = (134, 135, 136)


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
            target = rule.jump or ("DROP" if rule.drops else "RETURN" if rule.passing else "")
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


def own_lines(family: int, hook: str, *, ports: bool = False) -> dict[str, list[str]]:
    """Return the lines of each of a hook's chains that belong to no rule: the allow-list.

    `ports`: there are protected ports, whose chain all other rules come after.

    Lines come first whose own set says that the source is not listed: what they drop costs no lookup in the
    allow-list. All others cost one; only packets of listed addresses are compared with the roles, which pass
    by returning to the hook, then with the lines for them alone. Chains come before those that lead to them.
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
    to_listed = [f"-j {LISTED_CHAINS[hook]}"] if hook in LISTED_CHAINS else []
    entry += [*to_sources, f"{_in_set(KNOWN_SETS[family], incoming=incoming)} {to_roles}", to_rules]
    port_chain = {PORT_CHAINS[hook]: list[str]()} if ports else {}
    return {
        **port_chain,
        RULE_CHAINS[hook]: [f"-j {name}" for name in port_chain],
        **{chains[hook]: [] for chains in (SOURCE_CHAINS, LISTED_CHAINS) if hook in chains},
        ROLE_CHAINS[hook]: [
            *(f"{condition} -j RETURN" for condition in passing),
            *to_sources,
            *to_listed,
            to_rules,
        ],
        HOOK_CHAINS[hook]: entry,
    }


def changed_chain(state: TableState, family: int, hook: str) -> str:
    """Return the first of a hook's chains whose own lines are not as they should be; "" if none is."""
    wanted = own_lines(family, hook, ports=PORT_CHAINS.get(hook) in state.chains)
    changed = (name for name in wanted if not _has_head(state.chains.get(name, []), wanted[name]))
    return next(changed, "")


def _has_head(there: list[Listed], head: list[str]) -> bool:
    """Return whether a chain begins with its own lines, by what they lead to: what a match prints differs."""
    wanted = [(number, text.rpartition(" ")[2]) for number, text in enumerate(head, 1)]
    return [(line.number, line.target) for line in there if not line.rule_id] == wanted


def _incoming_roles(family: int) -> list[str]:
    """Return the conditions of each role (roles.py); ports first, as most packets have others."""
    peer, gateway = _in_set(PEER_SETS[family], ports=True), _in_set(GATEWAY_SETS[family])
    server, client = roles.DHCP_PORTS[family]
    return [
        f"-p tcp ! --syn {peer}",
        f"-p tcp -m set --match-set {LOGIN_SETS[family]} src,dst",
        f"-p udp --sport {roles.DNS_PORT} --dport {roles.ASKING_PORTS}:65535 {peer}",
        f"-p udp --sport {roles.NTP_PORT} {peer}",
        f"-p udp --sport {server} --dport {client} {peer}",
        f"-p udp -m multiport --dports {','.join(map(str, roles.BFD_PORTS))} {gateway}",
        f"-p tcp --dport {roles.BGP_PORT} {gateway}",
        *(f"-p {number} {gateway}" for number in (roles.ICMP[family], *roles.ROUTING)),
        *_behind_roles(family),
    ]


def _behind_roles(family: int) -> list[str]:
    """Return the conditions of conversations (roles.py): what comes from the peer's port, what goes to it."""
    name = BEHIND_SETS[family]
    peers, hosts = (f"-m set --match-set {name} {sides}" for sides in ("src,src,dst", "dst,dst,src"))
    return [
        f"-p tcp ! --syn {peers}",
        f"-p tcp ! --syn ! --dport {roles.DNS_PORT} {hosts}",
        f"-p udp --sport {roles.DNS_PORT} --dport {roles.ASKING_PORTS}:65535 {peers}",
        f"-p udp --sport {roles.NTP_PORT} {peers}",
        f"-p udp -m multiport --dports {','.join(map(str, roles.BFD_PORTS))} {hosts}",
        *(f"-p {number} {peers}" for number in roles.ROUTING),
    ]


def _outgoing_roles(family: int) -> list[str]:
    """Return the same for output: a flow that passes one way must be tracked both ways."""
    peer = _in_set(PEER_SETS[family], incoming=False, ports=True)
    gateway = _in_set(GATEWAY_SETS[family], incoming=False)
    numbers = (roles.ICMP[family], *roles.ROUTING)
    return [
        f"-p tcp {peer}",
        f"-p tcp -m set --match-set {LOGIN_SETS[family]} dst,src",
        f"-p udp {peer}",
        f"-p tcp --sport {roles.BGP_PORT} {gateway}",
        *(f"-p {number} {gateway}" for number in numbers),
    ]


def _in_set(name: str, *, incoming: bool = True, ports: bool = False) -> str:
    side = "src" if incoming else "dst"
    return f"-m set --match-set {name} {f'{side},{side}' if ports else side}"


def add_text(
    state: TableState,
    family: int,
    lines: Iterable[ChainLine],
    counted: Iterable[Listed | None] = (),
    *,
    heads_anew: bool = False,
) -> str:
    """Return the transaction that adds a rule's lines to a table in this state.

    `counted` are the lines whose counters they go on with. `heads_anew`: the chains' own lines are written
    again even where they seem to be as they should.
    """
    text = ["*raw"]
    wanted = list(lines)
    for hook in dict.fromkeys(line.hook for line in wanted):
        chain, of_ports = HOOK_CHAINS[hook], PORT_CHAINS.get(hook)
        ports = of_ports in state.chains or any(line.chain == of_ports for line in wanted)
        for name, head in own_lines(family, hook, ports=ports).items():
            if name not in state.chains:
                text += [f":{name} - [0:0]", *(f"-A {name} {line}" for line in head)]
            elif heads_anew or not _has_head(state.chains[name], head):
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


def restore_text(
    state: TableState, family: int, wanted: Mapping[str, list[ChainLine]], *, heads_anew: bool
) -> str:
    """Return the transaction that replaces the lines of rules and the jumps to them.

    Those keep their counters; where they are more or fewer than before, the first has the sum. `heads_anew`:
    the chains' own lines are replaced, too.
    """
    without, doomed = {}, []
    for chain, there in state.chains.items():
        doomed += [f"-D {chain} {line.number}" for line in reversed(there) if line.rule_id in wanted]
        kept = [line for line in there if line.rule_id not in wanted]
        without[chain] = [replace(line, number=number) for number, line in enumerate(kept, 1)]
    lines: list[ChainLine] = []
    counted: list[Listed | None] = []
    # Of several protected ports, what decides before another one goes in before it
    for rule_id in sorted(
        wanted, key=lambda one: max((len(it.behind or ()) for it in wanted[one]), default=0)
    ):
        mine, own = state.lines_of(rule_id), wanted[rule_id]
        lines += own
        counted += mine if len(mine) == len(own) else [*_summed(mine), *[None] * len(own)][: len(own)]
    state = replace(state, chains=without)
    first, *rest = add_text(state, family, lines, counted, heads_anew=heads_anew).splitlines()
    return "\n".join([first, *doomed, *rest, ""])


def _summed(lines: list[Listed]) -> list[Listed | None]:
    """Return a line that has counted what all of these have; none if there is none."""
    counted = [line for line in lines if not line.passing]
    packets, size = (sum(getattr(line, name) for line in counted) for name in ("packets", "bytes"))
    return [replace(counted[0], packets=packets, bytes=size)] if counted else []


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


def removal(state: TableState, family: int, rule_ids: set[str], *, keep_chains: bool = False) -> list[str]:
    """Return the commands that remove rules, and a hook's chains with its last one; none if none is there.

    They are nft's, with handles, where the table was read through nfnetlink: iptables refuses one with native
    rules. In the others lines of our chains go by number, from the last: what the kernel prints of a match
    need not be what it reads. Jumps are in chains of others, who may insert something meanwhile: all of them
    go by what they say. `keep_chains`: the chains and the jumps to them stay, without lines.
    """
    kept, unused = _by_use(state, rule_ids)
    doomed = [
        (chain, line) for chain in kept for line in reversed(state.chains[chain]) if line.rule_id in rule_ids
    ]
    gone = [] if keep_chains else unused
    jumps = [jump for chain in gone for jump in state.jumps.get(chain, ())]
    if state.by_handle:
        table = native(family)
        places = [(chain, line.handle) for chain, line in doomed]
        places += [(jump.chain, jump.handle) for jump in jumps]
        text = [f"delete rule {table} {chain} handle {handle}" for chain, handle in places]
        flush, delete = f"flush chain {table}", f"delete chain {table}"
    else:
        text = [f"-D {chain} {line.number}" for chain, line in doomed]
        text += [f"-D {jump.chain} {jump.text}" for jump in jumps]
        flush, delete = "-F", "-X"
    return [*text, *(f"{flush} {chain}" for chain in unused), *(f"{delete} {chain}" for chain in gone)]


def _by_use(state: TableState, rule_ids: set[str]) -> tuple[list[str], list[str]]:
    """Return the chains of hooks that keep a rule when these go, and the chains of all other hooks."""
    kept: list[str] = []
    unused: list[str] = []
    for hook in HOOK_CHAINS:
        mine = [chain for chain in OWN_CHAINS[hook] if chain in state.chains]
        staying = {line.rule_id for chain in mine for line in state.chains[chain]} - rule_ids - {""}
        (kept if staying else unused).extend(mine)
    return kept, unused
