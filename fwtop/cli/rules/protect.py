"""fwtop protect: let only access lists open connections to a port, or nobody, or everybody."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from msgspec.structs import replace

from fwtop.cli.options import option, read_as, whole
from fwtop.cli.rules.mitigation import DEFAULT_TTL_SECONDS, add_rule_options, carry_out
from fwtop.client import discovery
from fwtop.model.addresses.address import check_name
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Level, Match, Protection, Rule
from fwtop.rules.options import service
from fwtop.rules.words import with_summary

HELP = (
    "Let only addresses on access lists (see fwtop list) open connections to a port; established ones "
    "continue. To change the level of a protected port, repeat the command with another --level. The "
    "allow-list takes precedence."
)
EXAMPLE = "fwtop protect 443/tcp --level protected --acl office vpn --ttl 1d --yes"
DEFAULT_PRIORITY = 100  # above a policy's


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = "443/tcp, 53/udp, …"
    parser.add_argument("service", nargs="+", type=read_as(service), metavar="PORT/PROTO", help=what)
    parser.add_argument(
        "--level",
        choices=[level.value for level in Level],
        default=Level.PROTECTED.value,
        help="open to everybody, protected (the default): open to the access lists only, or closed to all",
    )
    acl = "access lists; required by level protected, and remembered by the other levels"
    parser.add_argument("--acl", nargs="+", default=[], metavar="LIST", help=acl)
    option(
        parser,
        "--priority",
        "N",
        "0 to 1000: the rule with the highest priority decides, among equals the newest "
        f"(default {DEFAULT_PRIORITY}, above a policy's)",
        whole("a priority from 0 to 1000", 0, 1000),
        default=DEFAULT_PRIORITY,
    )
    strict = "hold established connections to the level, too (default: no, or as the rule that is switched)"
    parser.add_argument("--strict", action=argparse.BooleanOptionalAction, help=strict)
    add_rule_options(parser, default_ttl="10m, or that of the rule that is switched")
    parser.set_defaults(ttl=None)  # to tell whether it was given


def run(args: argparse.Namespace) -> int:
    """Install one rule for each port, or switch the existing one."""
    return carry_out(args, [_in_place_of(args, rule) for rule in rules_of(args)])


def rules_of(args: argparse.Namespace) -> list[Rule]:
    """Return the requested rules; raises FwtopError (code 2)."""
    lists = tuple(dict.fromkeys(check_name(name) for name in args.acl))
    protection = Protection(Level(args.level), lists, args.priority, bool(args.strict))
    return [
        with_summary(_rule(args, Match(family=args.family, protocol=protocol, dport=port), protection))
        for port, protocol in dict.fromkeys(args.service)
    ]


def _rule(args: argparse.Namespace, match: Match, protection: Protection) -> Rule:
    ttl_seconds = args.ttl or DEFAULT_TTL_SECONDS
    return Rule("", Kind.PROTECT, match, "", ttl_seconds, created_by="cli", protection=protection)


def _in_place_of(args: argparse.Namespace, rule: Rule) -> Rule:
    """Return the rule as one that replaces an active one on the port with the same priority, if there is one.

    The access lists, the time to live and strictness of that one stay unless others are given. Raises
    FwtopError.
    """
    with discovery.connect(netns=args.netns, readonly=args.preview) as guardian:
        active = [status.rule for status in guardian.rules()]
    return in_place_of(rule, active, keep_ttl=args.ttl is None, keep_strict=args.strict is None)


def in_place_of(
    rule: Rule, active: Iterable[Rule], *, keep_ttl: bool = False, keep_strict: bool = False
) -> Rule:
    """Return the rule as the successor of the active one on its port, if there is one of its priority.

    With `keep_ttl` it has that one's time to live, with `keep_strict` it is strict if that one is. Raises
    FwtopError (code 2) where nobody would be let in.
    """
    wanted = rule.protection
    for old in active:
        if wanted is None or old.protection is None or old.match != rule.match:
            continue
        if old.protection.priority == wanted.priority:
            strict = old.protection.strict if keep_strict else wanted.strict
            wanted = replace(wanted, lists=wanted.lists or old.protection.lists, strict=strict)
            ttl_seconds = old.ttl_seconds if keep_ttl else rule.ttl_seconds
            rule = with_summary(replace(rule, protection=wanted, replaces=old.id, ttl_seconds=ttl_seconds))
            break
    if wanted is not None and wanted.level is Level.PROTECTED and not wanted.lists:
        raise FwtopError("level protected needs --acl with the lists to let in; nothing was changed", 2)
    return rule
