"""What fwtop writes into table raw: the chains' own lines, and the transactions that add and remove rules.

Text only: nothing here reads or changes the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from fwtop.guardian.mechanisms.chains.table_state import Listed, TableState, native
from fwtop.model.addresses import roles
from fwtop.rules.objects import (
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

KNOWN_SETS = {4: "fwtop-known4", 6: "fwtop-known6"}  # all that is listed: whose packets need a closer look
ALLOW_SETS = {4: "fwtop-allow4", 6: "fwtop-allow6"}  # what the operator lists: passes in full
PEER_SETS = {4: "fwtop-allow-peers4", 6: "fwtop-allow-peers6"}  # what was found: address and port
LOGIN_SETS = {4: "fwtop-allow-logins4", 6: "fwtop-allow-logins6"}  # who is logged in, and the port here
BEHIND_SETS = {4: "fwtop-allow-behind4", 6: "fwtop-allow-behind6"}  # a peer, its port, and a host behind
GATEWAY_SETS = {4: "fwtop-allow-gateways4", 6: "fwtop-allow-gateways6"}
# Neighbour discovery is to IPv6 what ARP is to IPv4; hop limit 255 proves that it comes from the link
# (RFC 4861, 6.1 and 7.1), so no rule may ever cut it.
_NEIGHBOUR_TYPES = (134, 135, 136)


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
    counted: Iterable[Listed] = (),
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
