"""fwtop block: drop packets from prefixes, an AS, a country, or the prefixes in a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.cli.options import flag, option
from fwtop.cli.rules.mitigation import DEFAULT_TTL_SECONDS, add_rule_options, carry_out
from fwtop.client import discovery
from fwtop.model.addresses.address import ASN, COUNTRY, Prefix, check_name, of_family, prefixes_of
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.errors import FwtopError
from fwtop.model.rule import LIST, Kind, Match, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import filters, of, why_too_many

HELP = (
    "Drop packets from prefixes, an AS (asn:64500), a country (country:NL), the prefixes in a file "
    "or those of a named list."
)
EXAMPLE = "fwtop block 198.51.100.0/24 2001:db8::/32 --ttl 30m --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("target", nargs="*", metavar="PREFIX|asn:N|country:CC|@FILE", help="sources to block")
    held = "block what the named list holds, now and after each change (see fwtop list)"
    option(parser, "--list", "NAME", held)
    where = "where to drop (default ipset, or that of the replaced rule)"
    parser.add_argument("--via", choices=filters("block"), help=where)
    gap = "replace this rule without a gap, inheriting its conditions, and --via and --ttl unless given"
    option(parser, "--replace", "ID", gap)
    flag(parser, "--close-open", "also close their open TCP connections")
    add_rule_options(parser, default_ttl="10m, or that of the replaced rule")
    parser.set_defaults(ttl=None)  # to tell whether it was given


def run(args: argparse.Namespace) -> int:
    """Install one rule for all named prefixes, and one per list."""
    if (args.list is None) == (not args.target):
        raise FwtopError("give sources to block, or one list with --list; nothing was changed", 2)
    if args.list is not None:
        return carry_out(args, [_on_list(args)])
    rules = rules_of(args)
    if args.replace is not None:
        if len(rules) > 1:
            raise FwtopError("--replace takes prefixes or a single list; nothing was changed", 2)
        rules = [_replacement(args, rules[0])]
    for rule in rules:
        if (reason := why_too_many(rule.kind, rule.match.sources)) is not None:
            raise FwtopError(f"{reason}; nothing was changed", 2)
    return carry_out(args, rules)


def _on_list(args: argparse.Namespace) -> Rule:
    """Return the rule on a named list; raises FwtopError.

    Its sources are for the preview alone, which needs them: the guardian has its own.
    """
    name = check_name(args.list)
    if args.replace is not None:
        raise FwtopError("--list does not go with --replace; nothing was changed", 2)
    sources: Sequence[Prefix] = ()
    if not args.yes:
        with discovery.connect(netns=args.netns, readonly=True) as guardian:
            sources = _of_family(guardian.read_list(name)[0], args.family)
    return _made(args, sources, f"block list {name}", LIST + name)


def _replacement(args: argparse.Namespace, new: Rule) -> Rule:
    """Return the active rule `--replace` names, with the new sources; raises FwtopError."""
    with discovery.connect(netns=args.netns, readonly=args.preview) as guardian:
        old = next((one.rule for one in guardian.rules() if one.rule.id == args.replace), None)
    if old is None or not of(old.kind).takes_lists or not old.match.sources:
        why = "is not active" if old is None else "blocks no sources"
        line = f"rule {safe_text(args.replace, limit=20)!r} {why}; nothing was changed; see 'fwtop status'"
        raise FwtopError(line, 2)
    family = args.family or old.match.family
    sources = _of_family(new.match.sources, family)
    if not sources:
        raise FwtopError(f"the list has no IPv{family} prefix, unlike rule {old.id}; nothing was changed", 2)
    return replace(
        old,
        id="",
        kind=Kind(args.via) if args.via else old.kind,
        match=replace(old.match, sources=sources, family=family),
        summary=new.summary,
        ttl_seconds=args.ttl or old.ttl_seconds,
        created_by="cli",
        origin=new.origin,
        close_open=new.close_open,
        predicted_pps=None,
        predicted_attack_share=None,
        predicted_collateral_share=None,
        predicted_clients=None,
        replaces=old.id,
    )


def rules_of(args: argparse.Namespace) -> list[Rule]:
    """Return the requested rules; raises FwtopError."""
    listed = [target for target in args.target if _is_list(target)]
    named = prefixes_of(target for target in args.target if not _is_list(target))
    rules = [_rule(args, named, None)] if named else []
    return rules + [_rule(args, _expand(origin), origin) for origin in dict.fromkeys(listed)]


def _rule(args: argparse.Namespace, found: Sequence[Prefix], origin: str | None) -> Rule:
    sources = _of_family(found, args.family)
    if not sources:
        which = f" IPv{args.family}" if args.family else ""
        line = f"{safe_text(origin or 'the list')} contains no{which} prefix; nothing was changed"
        raise FwtopError(line, 2)
    if origin is not None:
        what = f"{origin} ({len(sources):,} prefixes)"
    else:
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        what = ", ".join(map(str, sources[:3])) + more
    return _made(args, sources, safe_text(f"block {what}"), origin)


def _made(args: argparse.Namespace, sources: Sequence[Prefix], what: str, origin: str | None) -> Rule:
    kind, ttl = Kind(args.via or "ipset"), args.ttl or DEFAULT_TTL_SECONDS
    match = Match(sources=sources, family=args.family)
    return Rule("", kind, match, what, ttl, created_by="cli", origin=origin, close_open=args.close_open)


def _is_list(target: str) -> bool:
    return target.startswith(("@", ASN, COUNTRY))


def _of_family(prefixes: Sequence[Prefix], family: int | None) -> Sequence[Prefix]:
    return prefixes if family is None else of_family(prefixes, family, ())


def _expand(origin: str) -> Sequence[Prefix]:
    if origin.startswith("@"):
        return read_prefix_file(origin[1:])
    from fwtop.enrich.geoip import prefixes_of_origin

    return tuple(prefixes_of_origin(origin))
