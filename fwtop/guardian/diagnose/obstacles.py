"""What packets pass before they reach fwtop's rules: other rules, tables and programs.

Netfilter calls base chains by priority, and at equal priority the one registered last first
(net/netfilter/core.c, nf_hook_entries_grow): an ACCEPT ends its own base chain only, a DROP the packet.
"""

from __future__ import annotations

import re
from typing import Any

from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.compare import ENDS_PACKET, leaves
from fwtop.guardian.mechanisms.chains.sets import PREFIX
from fwtop.kernel.programs import CommandError
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.netfilter import nft
from fwtop.netfilter.iptables import LEGACY, NFT, Variant, loaded_tables, named
from fwtop.netfilter.saved import Line, Saved
from fwtop.rules.kind import (
    HOOK_CHAINS,
    LISTED_CHAINS,
    PREROUTING,
    ROLE_CHAINS,
    RULE_CHAINS,
    SOURCE_CHAINS,
)

Counted = dict[Line, int]  # lines of all chains → packets

_OURS = HOOK_CHAINS[PREROUTING]
_RAW_PRIORITY = -300  # linux/netfilter_ipv4.h: NF_IP_PRI_RAW
_ENDS_CHAIN = frozenset({"ACCEPT", "DROP", "RETURN", "REJECT", "QUEUE", "NFQUEUE"})
_FATAL_WORDS = re.compile(r"\b(drop|reject|queue|jump|goto|dnat|fwd)\b")
_MAX_SHOWN = 3


def in_raw(chains: Chains, rule: Rule, now: Counted, gained: Counted, obstructed: str) -> list[str]:
    """Name what takes packets before a rule in table raw; `obstructed` tells of lines that count nothing."""
    found = _foreign_lines(now, gained) or ([obstructed] if obstructed else [])
    found += _own_lines(now, gained, rule.id) + _native_rules(chains, rule.match.families)
    return found + _other_tables(chains.variant, rule.match.families)


def _foreign_lines(now: Counted, gained: Counted) -> list[str]:
    """Name the lines of raw PREROUTING above our jump that take packets away from it."""
    found: list[tuple[int, str]] = []
    for line, packets in now.items():
        if (line.table, line.chain) != ("raw", PREROUTING) or line.number >= _jump_at(now, line.family):
            continue
        if not _takes(line, now):
            continue
        gain = gained.get(line, 0)
        rate = f", {gain:,} of them just now" if gain else ""
        what = f"-A {PREROUTING} {line.text}"
        if packets:
            sentence = (
                f"a rule above fwtop's takes packets first: {_quoted(what)} (IPv{line.family}, "
                f"{packets:,} packets{rate}); the next rule that fwtop installs puts fwtop first again"
            )
            found.append((packets, sentence))
    return [sentence for _, sentence in sorted(found, reverse=True)[:_MAX_SHOWN]]


def _own_lines(now: Counted, gained: Counted, rule_id: str) -> list[str]:
    """Name fwtop's own lines that come before a rule's: the allow-list's and other rules'."""
    found: list[str] = []
    for family in (4, 6):
        lines = _own_chains(now, family)
        own = [at for at, line in enumerate(lines) if f"--match-set {PREFIX}{rule_id}-" in line.text]
        for at, line in enumerate(lines[: own[-1]] if own else lines):
            gain = gained.get(line, 0)
            if not gain or at in own:
                continue
            if "fwtop-allow" in line.text:
                found.append(
                    f"the allow-list let {gain:,} IPv{family} packets pass just now: addresses on it (own, "
                    "operators', gateways, resolvers; see 'fwtop status') are never matched"
                )
            elif "-i lo" in line.text:
                found.append(f"{gain:,} IPv{family} packets came over loopback, which no rule touches")
            elif other := re.search(r"fwtop-(\d+)-", line.text):
                found.append(f"rule {other.group(1)} comes before it and took {gain:,} packets just now")
    return found


def _own_chains(now: Counted, family: int) -> list[Line]:
    """Return the lines of fwtop's chains in the order in which packets meet them."""
    kinds = (HOOK_CHAINS, SOURCE_CHAINS, ROLE_CHAINS, LISTED_CHAINS, RULE_CHAINS)
    order = [kind[PREROUTING] for kind in kinds]
    mine = [line for line in now if (line.table, line.family) == ("raw", family) and line.chain in order]
    return sorted(mine, key=lambda line: (order.index(line.chain), line.number))


def _native_rules(chains: Chains, families: tuple[int, ...]) -> list[str]:
    """Say where table raw holds native nftables rules: iptables can't list what comes before fwtop's."""
    found = []
    for family in families:
        state = chains.read(family)
        above = state.hook_position.get(_OURS, 0) - 1
        if above > 0 and chains.refuses(family):
            inet = "ip" if family == 4 else "ip6"
            rules = "1 rule comes" if above == 1 else f"{above} rules come"
            found.append(
                f"{rules} before fwtop's in table raw (IPv{family}), which holds native nftables rules that "
                f"iptables can't list; 'nft list chain {inet} raw {PREROUTING}' shows them"
            )
    return found


def _other_tables(variant: Variant, families: tuple[int, ...]) -> list[str]:
    """Name what drops packets before table raw, or beside it in the other iptables variant."""
    found = nft_chains(variant, families)
    if variant.name == NFT:
        found += _legacy_raw(families)
    return found


def nft_chains(variant: Variant, families: tuple[int, ...]) -> list[str]:
    """Name foreign nftables chains that see packets before table raw does and may drop them."""
    found: list[str] = []
    for chain in _early_chains(variant, families):
        where = f"{chain['family']} {chain['table']} {chain['name']}"
        try:
            listed = nft.printed("chain", *where.split(), seconds=10)
        except CommandError:
            continue  # it went away meanwhile
        rules = [line.strip() for line in listed.splitlines()[3:] if _FATAL_WORDS.search(line)]
        policy = chain.get("policy") == "drop"
        if not rules and not policy:
            continue
        what = "its policy is drop" if policy else f"for one {_quoted(rules[0])}"
        order = "at the same priority as" if chain["prio"] == _RAW_PRIORITY else "before"
        found.append(
            f"nftables chain {safe_text(where)} ({chain['hook']}, priority {chain['prio']}) sees packets "
            f"{order} fwtop's rules, and what it drops never gets there: {what}"
        )
    return found[:_MAX_SHOWN]


def _early_chains(variant: Variant, families: tuple[int, ...]) -> list[dict[str, Any]]:
    try:
        listed = nft.listed("chains", seconds=10)
    except FwtopError:
        return []
    kinds = {"inet", "netdev"} | {"ip" if family == 4 else "ip6" for family in families}
    found = []
    for kind, chain in listed:
        if kind != "chain" or chain["family"] not in kinds or chain["table"].startswith("fwtop"):
            continue
        if variant.name == NFT and chain["table"] == "raw" and chain["family"] in ("ip", "ip6"):
            continue  # iptables-nft's own: its lines are looked at one by one
        early = chain.get("hook") == "prerouting" and int(chain.get("prio", 0)) <= _RAW_PRIORITY
        if chain.get("hook") == "ingress" or early:
            found.append(chain)
    return found


def _legacy_raw(families: tuple[int, ...]) -> list[str]:
    """Name dropping lines of the legacy table raw, where one is loaded; looking never loads it."""
    found: list[str] = []
    for family in families:
        saved = named(LEGACY).read(family, "raw") if "raw" in loaded_tables(family) else Saved(family)
        for line, (packets, _) in saved.lines.items():
            if line.chain == PREROUTING and line.target in ENDS_PACKET and packets:
                found.append(
                    "the other iptables variant (legacy) has rules in table raw, too, and drops there: "
                    f"{_quoted(f'-A {PREROUTING} {line.text}')} ({packets:,} packets)"
                )
    return found[:_MAX_SHOWN]


def _jump_at(now: Counted, family: int) -> int:
    for line in now:
        if (line.table, line.chain, line.family) == ("raw", PREROUTING, family) and line.target == _OURS:
            return line.number
    return 0


def _takes(line: Line, now: Counted, depth: int = 0) -> bool:
    """Return whether a line can keep a packet from the ones after it, in the chains it jumps to as well."""
    if line.target in _ENDS_CHAIN:
        return depth == 0 or line.target != "RETURN"
    if depth == 0 and leaves(line):
        return True
    if depth > 8 or not line.target:
        return False
    inner = [item for item in now if (item.table, item.chain) == (line.table, line.target)]
    return any(_takes(item, now, depth + 1) for item in inner if item.family == line.family)


def _quoted(text: str) -> str:
    return f"'{safe_text(text, limit=160)}'"
