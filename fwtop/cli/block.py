"""fwtop block: drop what comes from prefixes, an autonomous system, a country, or a file's entries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fwtop.cli.mitigation import DEFAULT_TTL_SECONDS, add_rule_options, carry_out
from fwtop.cli.prefix_file import read_prefix_file
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Status
from fwtop.model.rule import Kind, Match, Rule, families_of, rule_status_from_dict
from fwtop.model.text import safe_text

NAME = "block"
HELP = "Drop what comes from prefixes, an autonomous system (asn:64500), a country (country:NL) or a file."
EXAMPLE = "fwtop block 198.51.100.0/24 2001:db8::/32 --ttl 30m --yes"
_VIA = ("ipset", "xdp", "tc", "nftables")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("target", nargs="+", metavar="PREFIX|asn:N|country:CC|@FILE", help="whom to block")
    parser.add_argument(
        "--via",
        choices=_VIA,
        help="where to drop (default ipset, or where the rule is that it replaces)",
    )
    parser.add_argument(
        "--replace",
        metavar="ID",
        help="take the place of this rule, with its --via, --ttl and conditions unless they are given; "
        "it goes when the new one is in",
    )
    add_rule_options(parser)
    parser.set_defaults(ttl=None)


def run(args: argparse.Namespace) -> int:
    """Install one rule for the prefixes named, and one for each list."""
    rules = rules_of(args)
    if args.replace is None:
        return carry_out(args, rules)
    if len(rules) > 1:
        raise FwtopError("one rule can't become several: name prefixes or one list; nothing was changed", 2)
    return carry_out(args, [_in_place_of(args, rules[0])])


def _in_place_of(args: argparse.Namespace, new: Rule) -> Rule:
    """Return the active rule that is to be replaced, with the sources of the new one; raises FwtopError."""
    from fwtop.mitigate import client

    with client.connect(netns=args.netns, readonly=args.preview) as guardian:
        found = guardian.demand(Status()).data["rules"]
    active = {item["rule"]["id"]: rule_status_from_dict(item).rule for item in found}
    old = active.get(args.replace)
    if old is None or old.kind.value not in _VIA or not old.match.sources:
        why = "is not active" if old is None else "blocks no sources"
        line = f"rule {safe_text(args.replace, limit=20)!r} {why}; nothing was changed; see 'fwtop status'"
        raise FwtopError(line, 2)
    family = args.family or old.match.family
    sources = _of_family(new.match.sources, family)
    if not sources:
        raise FwtopError(
            f"there is no prefix of IPv{family} in it, as rule {old.id} has; nothing was changed", 2
        )
    return replace(
        old,
        id="",
        kind=Kind(args.via) if args.via else old.kind,
        match=replace(old.match, sources=sources, family=family),
        summary=new.summary,
        ttl_seconds=args.ttl or old.ttl_seconds,
        created_by="cli",
        origin=new.origin,
        predicted_pps=None,
        predicted_attack_share=None,
        predicted_collateral_share=None,
        replaces=old.id,
    )


def rules_of(args: argparse.Namespace) -> list[Rule]:
    """Return the rules that were asked for; raises FwtopError."""
    kind = Kind(args.via or "ipset")
    listed = [target for target in args.target if _is_list(target)]
    named = tuple(dict.fromkeys(_prefix(target) for target in args.target if not _is_list(target)))
    rules = [_rule(kind, args, _of_family(named, args.family), None)] if named else []
    rules += [
        _rule(kind, args, _of_family(_expand(origin), args.family), origin)
        for origin in dict.fromkeys(listed)
    ]
    return rules


def _rule(kind: Kind, args: argparse.Namespace, sources: Sequence[Prefix], origin: str | None) -> Rule:
    if not sources:
        which = f" of IPv{args.family}" if args.family else ""
        raise FwtopError(f"{safe_text(origin or 'the list')} holds no prefix{which}; nothing was changed", 2)
    if origin is not None:
        what = f"{origin} ({len(sources):,} prefixes)"
    else:
        what = ", ".join(map(str, sources[:3])) + (
            f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        )
    match = Match(sources=sources, family=args.family)
    ttl = args.ttl or DEFAULT_TTL_SECONDS
    return Rule("", kind, match, safe_text(f"block {what}"), ttl, created_by="cli", origin=origin)


def _is_list(target: str) -> bool:
    return target.startswith(("@", "asn:", "country:"))


def _prefix(target: str) -> Prefix:
    try:
        return Prefix.parse(target)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2) from None


def _of_family(prefixes: Sequence[Prefix], family: int | None) -> Sequence[Prefix]:
    if family is None or families_of(prefixes) == {family}:
        return prefixes
    return tuple(prefix for prefix in prefixes if prefix.family == family)


def _expand(origin: str) -> Sequence[Prefix]:
    kind, _, name = origin.partition(":")
    if origin.startswith("@"):
        return read_prefix_file(origin[1:])
    if kind == "asn" and not (name.isascii() and name.isdigit() and 0 < int(name) < 1 << 32):
        raise FwtopError(f"{safe_text(origin, limit=60)!r}: an AS is a number, as in asn:64500", 2)
    from fwtop.enrich.prefixes import prefixes_of_asn, prefixes_of_country

    found = prefixes_of_asn(int(name)) if kind == "asn" else prefixes_of_country(name)
    return tuple(found)
