"""The stateless equivalent of rules on connection states, for the packets of services that are not tracked.

An untracked packet is neither NEW nor ESTABLISHED, and an ICMP error about it is INVALID, not RELATED
(nf_conntrack_proto_icmp.c). So beside each line of table filter that asks for such a state comes one that
looks at the packet: not a bare SYN for ESTABLISHED, a bare SYN for NEW. It comes where its line is, so that
the order among all others stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, protocol_name
from fwtop.netfilter import nft_stateless
from fwtop.netfilter.iptables import LEGACY, NFT, Variant, beside
from fwtop.netfilter.nft_listed import Listed
from fwtop.netfilter.saved import (
    Arguments,
    Line,
    Option,
    Packets,
    Saved,
    may_be_about,
    names_port,
    without_known,
)
from fwtop.netfilter.tracking import (
    ERRORS_MATTER,
    PLAIN,
    TRANSLATES,
    forwarding,
    may_meet,
    needs_tracking,
    packets_of,
    stands_for,
    why,
)
from fwtop.rules.xtables import quote

_DROPPING = frozenset({"DROP", "REJECT"})
_FILTERING = ("mangle", "filter", "security")  # tables behind connection tracking
_HOOKS = ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")
_SHOWN = 5  # warnings
_TAKES_UNTRACKED = "a rule on UNTRACKED that would be about its packets, too"
_OWN_SET = re.compile(r"--match-set fwtop-(\d+)-on[46] src ")  # of a rule of fwtop that is in force
_ASKS = ("conntrack", "state")  # matches on states
_SYN = ("FIN,SYN,RST,ACK", "SYN")
# Errors that a connection needs: fragmentation needed is one of type 3 (RFC 1191), without which segments
# that are too large for the path vanish; for IPv6 that is packet too big, type 2 (RFC 8201).
_ERRORS = {4: ("3", "11", "12"), 6: ("1", "2", "3", "4")}
_NEIGHBOURS = ("133", "134", "135", "136")  # neighbour discovery (RFC 4861), from the link only


class Insert(Struct, frozen=True):
    """A line to put into a chain of table filter."""

    family: int
    chain: str
    number: int  # the line before which it goes, from 1
    arguments: tuple[str, ...]
    why: str  # in words

    def line(self, asks: Sequence[str] = ()) -> str:
        """Return it as `iptables-restore` reads it, behind a further condition."""
        return " ".join(["-I", self.chain, str(self.number), *map(quote, (*asks, *self.arguments))])


def notrack_warnings(variant: Variant, match: Match) -> tuple[str, ...]:
    """Name the rules that would stop working for the packets that a match exempts from tracking."""
    lines = (line for family in match.families for line in variant.read(family).lines)
    found = [_named(line) for line in lines if needs_tracking(line) and may_meet(line, match)]
    with contextlib.suppress(FwtopError):
        found += nft_stateless.tracking_rules(nft_stateless.read_native(variant), match)
    warnings = [f"{what}: untracked packets won't get this" for what in found[:_SHOWN]]
    if len(found) > _SHOWN:
        warnings.append(f"and {len(found) - _SHOWN} more rules need connection tracking")
    return (*warnings, *forwarding(match))


Read = tuple[Sequence[Saved], Listed]


def read_own(variant: Variant, families: Sequence[int]) -> Read:
    """Read this host's own rules for `tracked_only` and `closes`; raises FwtopError."""
    saved = [read(family) for read in (variant.read, partial(beside, variant)) for family in families]
    return saved, nft_stateless.read_native(variant)


def closes(saved: Sequence[Saved], native: Listed, match: Match) -> str:
    """Return what names the rule on tracked packets without which nothing of a service gets in.

    "" where packets may get in, or where nothing drops all that no rule lets in.
    """
    rule, packets = tracked_only(saved, native)(match), packets_of(match, incoming=True)
    closed = nft_stateless.drops_rest(native, packets)
    for one in saved:
        lines = [line for line in _filter(one.lines, match.families) if _is_about(line, packets)]
        inside = [line for line in lines if line.chain in _reached(lines, "INPUT")]
        policy = one.chains.get(("filter", "INPUT"))
        closed |= policy is not None and policy.policy == "DROP"
        last = (line for line in lines if line.chain == "INPUT" and line.target in _DROPPING)
        closed |= any(
            not any(one.options for one in without_known(line.arguments.matches, packets)) for line in last
        )
        if any(line.target == "ACCEPT" and _takes_any(line) for line in inside):
            return ""
    return rule if closed and not nft_stateless.lets_in(native, packets) else ""


def _is_about(line: Line, packets: Packets) -> bool:
    """Whether packets from elsewhere may meet a line."""
    inside = (option for one in line.arguments.matches for option in one.options if option.name == "-i")
    return may_be_about(line.arguments, packets) and not any(
        option.values == ("lo",) and not option.negated for option in inside
    )


def _takes_any(line: Line) -> bool:
    """Whether a line is about untracked packets, too."""
    return not needs_tracking(line) or "untracked" in states(line)


def tracked_only(saved: Sequence[Saved], native: Listed) -> Callable[[Match], str]:
    """Return what names a rule that packets of a match may have to be tracked for, so as not to be dropped.

    "" without one, or where no rule drops them. What isn't understood, addresses and rates, counts as met.
    """
    lines = [line for one in saved for line in _passed(one)]
    bases = [one.chains.get((table, hook)) for one in saved for table, hook in product(_FILTERING, _HOOKS)]
    closed = any(chain is not None and chain.policy == "DROP" for chain in bases)

    def named(match: Match) -> str:
        met = [line for line in lines if may_meet(line, match)]
        drops = closed or any(line.target in _DROPPING for line in met)
        if not drops and not nft_stateless.may_drop(native, match):
            return ""
        needing = [f"-A {line.chain} {line.text}" for line in met if needs_tracking(line)]
        return next(iter((*needing, *nft_stateless.tracking_rules(native, match))), "")

    return named


def _passed(saved: Saved) -> Iterator[Line]:
    """Yield the lines that packets to or from this host meet; those on INVALID are about no untracked one."""
    for table in _FILTERING:
        lines = [line for line in saved.lines if line.table == table]
        chains = {chain for hook in _HOOKS for chain in _reached(lines, hook)}
        yield from (line for line in lines if line.chain in chains and states(line) != {"invalid"})


def _named(line: Line) -> str:
    kind = "NAT" if line.target in TRANSLATES else "a stateful rule"
    text = safe_text(f"-A {line.chain} {line.text}", limit=140)
    return f"{kind} in {line.table} of IPv{line.family}, '{text}'"


def obstacles(variant: Variant, match: Match) -> list[str]:
    """Name what needs tracking of a service and has no stateless equivalent; empty if nothing does."""
    found: list[str] = []
    for family in match.families:
        lines = [*variant.read(family).lines]
        found += [f"{what}, {_quoted(line)}" for line in lines if (what := _obstacle(line, match))]
        found += [f"{_TAKES_UNTRACKED}, {_quoted(line)}" for line in _taking_untracked(lines, match)]
        found += [
            f"{_kind(line)}, {_quoted(line)}, of {LEGACY} iptables, beside {NFT}"
            for line in beside(variant, family).lines
            if needs_tracking(line) and may_meet(line, match)
        ]
    return [safe_text(text, limit=220) for text in found] + [
        *nft_stateless.obstacles(nft_stateless.read_native(variant), match),
        *forwarding(match),
    ]


def _quoted(line: Line) -> str:
    return f"'-A {line.chain} {line.text}' in {line.table} of IPv{line.family}"


def _obstacle(line: Line, match: Match) -> str:
    """Return in words what of a line needs tracking and has no equivalent, "" if nothing has."""
    needed = needs_tracking(line) and may_meet(line, match) and not _convertible(line)
    return _kind(line) if needed else ""


def _kind(line: Line) -> str:
    rule = line.arguments
    if rule.target_name in TRANSLATES:
        return "NAT"
    if rule.named("helper") or "--helper" in rule.target:
        return "a helper"
    if states(line) and not needs_tracking(_without_states(line)):
        return "a rule on states" + ("" if line.table == "filter" else f" in table {line.table}")
    return "a rule that counts or marks connections"


def _taking_untracked(lines: Sequence[Line], match: Match) -> list[Line]:
    """Return lines on UNTRACKED that aren't about a service's new connections, or answers, while tracked.

    (One on NEW and UNTRACKED, as firewalld writes for its services, does untracked what it did.)
    """
    found: list[Line] = []
    for hook, state in (("INPUT", "new"), ("OUTPUT", "established")):
        chains = _reached(_filter(lines, match.families), hook)
        found += [
            line
            for line in lines
            if line.chain in chains
            and _convertible(line)
            and "untracked" in states(line)
            and state not in states(line)
            and may_be_about(line.arguments, packets_of(match, incoming=hook == "INPUT"))
        ]
    return list(dict.fromkeys(found))


def _filter(lines: Iterable[Line], families: Iterable[int]) -> list[Line]:
    return [line for line in lines if line.family in families and line.table == "filter"]


def already_untracked(lines: Sequence[Line], match: Match) -> str:
    """Say which line of table raw takes a service out of tracking in every family, "" without one."""
    found = [line for line in lines if line.table == "raw" and _untracks(line, match)]
    if not {line.family for line in found} >= {*match.families}:
        return ""
    own = _OWN_SET.search(found[0].text)
    return f"fwtop's rule {own[1]}" if own else _quoted(found[0])


def _untracks(line: Line, match: Match) -> bool:
    """Whether a line takes all that comes to a service out of tracking."""
    rule, packets = line.arguments, packets_of(match, incoming=True)
    if rule.target_name != "NOTRACK" and "--notrack" not in rule.target:
        return False
    theirs, own = line.chain == "PREROUTING", _OWN_SET.search(line.text) is not None
    open_ones = [one for one in without_known(rule.matches, packets) if one.options]
    asked = [one for one in open_ones if not (own and one.name == "set")]
    return (theirs or own) and not asked and may_be_about(rule, packets)


def inserts(lines: Sequence[Line], services: Sequence[Match], family: int) -> list[Insert]:
    """Return the lines that go beside those of table filter that ask for states, in their order.

    Only chains that packets to or from this machine pass are changed.
    """
    mine = _filter(lines, (family,))
    found: list[Insert] = []
    for hook in ("INPUT", "OUTPUT"):
        chains = _reached(mine, hook)
        there = [line for line in mine if line.chain in chains and _convertible(line)]
        opened: set[str] = set()
        for line in there:
            if line.chain not in opened and states(line) & ERRORS_MATTER and hook == "INPUT":
                opened.add(line.chain)  # before the first: one on INVALID would drop the errors
                first = next(item for item in there if item.chain == line.chain)
                found += _errors(first, family)
            for match in services:
                arguments = _equivalent(line, match, hook)
                if arguments is not None:
                    reason = why(map(str.upper, states(line)), match)
                    found.append(Insert(family, line.chain, line.number + 1, arguments, reason))
    return list(dict.fromkeys(found))


def from_below(wanted: Iterable[Insert]) -> list[Insert]:
    """Order lines so that none moves the place of another; those of one place keep their order."""
    items = list(enumerate(wanted))
    return [item for _, item in sorted(items, key=lambda pair: (pair[1].chain, -pair[1].number, -pair[0]))]


def _reached(lines: Sequence[Line], hook: str) -> set[str]:
    """Return a hook's chain and all that it leads to."""
    found, before = {hook}, 0
    while len(found) > before:
        before = len(found)
        found |= {line.target for line in lines if line.chain in found}
    return found


def names(lines: Iterable[Line], match: Match) -> bool:
    """Whether a rule that lets packets in names a service's port."""
    packets, mine = packets_of(match, incoming=True), _filter(lines, match.families)
    chains = {family: _reached(_filter(mine, (family,)), "INPUT") for family in match.families}
    return any(
        line.target not in _DROPPING and names_port(line.arguments, packets)
        for line in mine
        if line.chain in chains[line.family]
    )


def states(line: Line) -> frozenset[str]:
    """Return the connection states that a line asks for, empty if it asks for none."""
    asked = _asking(line.arguments)
    return (
        frozenset(asked.values[0].lower().split(",")) if asked is not None and asked.values else frozenset()
    )


def _asking(rule: Arguments) -> Option | None:
    """Return the first condition on states."""
    conditions = (option for match in rule.named(*_ASKS) for option in match.options)
    return next((option for option in conditions if option.name in ("--state", "--ctstate")), None)


def _without_states(line: Line) -> Line:
    """Return a line without its matches on nothing but a state."""
    rule = line.arguments
    plain = (["--state"], ["--ctstate"])
    left = (one for one in rule.matches if [option.name for option in one.options] not in plain)
    words = (word for match in left for word in match.words)
    return replace(line, text=" ".join(map(quote, (*words, *rule.target))))


def _convertible(line: Line) -> bool:
    """Whether it needs nothing of tracking but one plain list of states, not negated."""
    asked = _asking(line.arguments)
    if line.table != "filter" or asked is None or asked.negated or not states(line) <= PLAIN:
        return False
    return len(line.arguments.named(*_ASKS)) == 1 and not needs_tracking(_without_states(line))


def _equivalent(line: Line, match: Match, hook: str) -> tuple[str, ...] | None:
    """Return a line's arguments for the packets of one untracked service, None where none are needed."""
    incoming, asked, rule = hook == "INPUT", states(line), line.arguments
    about, wanted = packets_of(match, incoming=incoming), stands_for(match, incoming=incoming)
    if not asked & wanted or "untracked" in asked or not may_be_about(rule, about):
        return None
    name = protocol_name(match.protocol or 0)
    left = without_known([one for one in rule.matches if one.name not in _ASKS], about)
    of_protocol = [option for one in left if one.name == name for option in one.options]
    others = [word for one in left if one.name != name for word in one.words]
    flags: list[str] = []
    if match.protocol == TCP and incoming and not wanted <= asked:
        bare = Option("--tcp-flags", _SYN, negated="established" in asked)
        others_flags = [option for option in of_protocol if option.name == bare.name and option != bare]
        if any((option.negated and not bare.negated) or option.values == _SYN for option in others_flags):
            return None  # a connection that begins without a SYN is what tracking alone can tell
        given = any(option.name == bare.name for option in of_protocol)
        flags = [*(["-m", name] if given else []), *bare.words] if bare not in of_protocol else []
    where = ["-p", name, "-m", name, "--dport" if incoming else "--sport", str(match.dport)]
    return (*where, *(word for option in of_protocol for word in option.words), *flags, *others, *rule.target)


def _errors(line: Line, family: int) -> list[Insert]:
    option, protocol = ("--icmp-type", "icmp") if family == 4 else ("--icmpv6-type", "ipv6-icmp")
    head = ("-p", protocol, "-m", "icmp" if family == 4 else "icmp6", option)
    made: list[tuple[tuple[str, ...], str]] = [
        ((*head, kind, "-j", "ACCEPT"), nft_stateless.WHY_ERRORS) for kind in _ERRORS[family]
    ]
    if family == 6:
        near = ("-m", "hl", "--hl-eq", "255", "-j", "ACCEPT")
        made += [((*head, kind, *near), nft_stateless.WHY_NEIGHBOURS) for kind in _NEIGHBOURS]
    return [Insert(family, line.chain, line.number, arguments, why) for arguments, why in made]
