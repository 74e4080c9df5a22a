"""Verbs that make a rule: limit, match, drop, notrack, synproxy, sysctl of options, apply of a proposal.

What a verb takes follows from the header fields and kinds of rules that it names (rules/fields.py and kinds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.cli.options import Verb, flag, option, positive, read_as, whole
from fwtop.cli.rules.mitigation import add_fields, add_rule_options, carry_out, match_of, prefix
from fwtop.kernel import namespaces
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, Setting
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, type_number
from fwtop.model.tunables import SHORT_NAMES, TUNABLES, Tunable
from fwtop.render.numbers import duration
from fwtop.rules import fields, options
from fwtop.rules.fields import DPORT, PROTOCOL
from fwtop.rules.kinds import filters
from fwtop.rules.words import with_summary

_SERVICE = (PROTOCOL, DPORT)
_DROPPED = (
    *(*fields.PORTS, fields.LENGTH, fields.TTL, fields.TCP_FLAGS, fields.IP_ID),
    *(*fields.SEGMENT, fields.ICMP_TYPE, fields.FRAGMENT),
)


def _verb(
    help: str,
    example: str,
    own_arguments: Callable[[argparse.ArgumentParser], None],
    bare_rule: Callable[[argparse.Namespace], Rule],
) -> Verb:
    """Return a verb that takes a rule's own options and those of all; `bare_rule` may raise FwtopError."""

    def arguments(parser: argparse.ArgumentParser) -> None:
        own_arguments(parser)
        add_rule_options(parser)

    def rule_of(args: argparse.Namespace) -> Rule:
        made = replace(bare_rule(args), ttl_seconds=args.ttl, created_by="cli")
        return made if made.summary else with_summary(made)

    return Verb(help, example, arguments, lambda args: carry_out(args, [rule_of(args)]), rule_of)


def _limit_arguments(parser: argparse.ArgumentParser) -> None:
    add_fields(parser, *_SERVICE)
    per = "source prefix length, for example 24"
    parser.add_argument("--per", type=_length, required=True, metavar="BITS", help=per)
    default = f"the same for IPv6 (default {options.DEFAULT_PREFIX_V6})"
    option(parser, "--per6", "BITS", default, _length)
    what = parser.add_mutually_exclusive_group(required=True)
    option(what, "--rate", "RATE", "1000/s, 30/m, or bytes: 2MB/s", read_as(options.rate))
    connections = whole("a number of connections above 0", 1, 10**6)
    option(what, "--connections", "N", "TCP connections that a prefix may have open", connections)
    closes = "with --connections: also close open connections above the limit, longest idle first"
    flag(parser, "--close-open", closes)
    burst = whole("a number of packets or bytes above 0", 1, 10**9)
    option(parser, "--burst", "N", "burst in packets or bytes (default: one second of the rate)", burst)
    flag(parser, "--by-port", "count each destination port separately")
    parser.add_argument("--via", choices=filters("limit"), help="where (default hashlimit)")


def _length(text: str) -> int:
    return whole("a prefix length from 1 to 128", 1, 128)(text.removeprefix("/"))


def _limit_rule(args: argparse.Namespace) -> Rule:
    if args.close_open and args.connections is None:
        raise FwtopError("--close-open needs --connections; nothing was changed", 2)
    given = {name: getattr(args, name) for name in ("per6", "rate", "connections", "burst", "by_port", "via")}
    return replace(options.limited(match_of(args, *_SERVICE), args.per, **given), close_open=args.close_open)


def _match_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    option(what, "--string", "TEXT", "this text, as UTF-8")
    option(what, "--hex", "HEX", "these bytes")
    option(what, "--dns", "NAME", "this DNS name, in wire format")
    option(parser, "--type", "T", "with --dns: only this query type: A, ANY, …", read_as(type_number))
    option(parser, "--mask", "HEX", "with --hex: compare only the bits set in this mask")
    offset = whole("a byte offset from 0 to 65535", 0, 65535)
    option(parser, "--offset", "N", "only at this payload offset", offset)
    add_fields(parser, *_SERVICE)
    where = "where to drop (default string)"
    parser.add_argument("--via", choices=filters("match"), default="string", help=where)


def _match_rule(args: argparse.Namespace) -> Rule:
    names = ("string", "hex", "dns", "type", "mask", "offset")
    payload = options.payload(**{name: getattr(args, name) for name in names})
    return Rule("", Kind(args.via), match_of(args, *_SERVICE, payload=(payload,)), "", 0)


def _drop_arguments(parser: argparse.ArgumentParser) -> None:
    add_fields(parser, PROTOCOL)
    _add_prefixes(parser, "--from", "sources", "only from these sources (default: all)")
    add_fields(parser, *_DROPPED)
    where = "where to drop: in the driver, at tc ingress, or at nftables' netdev ingress"
    parser.add_argument("--via", choices=filters("drop"), required=True, help=where)


def _add_prefixes(parser: argparse.ArgumentParser, name: str, dest: str, help: str) -> None:
    parser.add_argument(
        name, dest=dest, action="append", default=[], type=prefix, metavar="PREFIX", help=help
    )


def _drop_rule(args: argparse.Namespace) -> Rule:
    match = match_of(args, PROTOCOL, *_DROPPED, sources=tuple(args.sources))
    if match == Match(match.sources, family=args.family):
        line = "a drop needs at least one field, or it would drop everything (of a source: fwtop block)"
        raise FwtopError(f"{line}; nothing was changed", 2)
    return Rule("", Kind(args.via), match, "", 0)


def _synproxy_arguments(parser: argparse.ArgumentParser) -> None:
    add_fields(parser, DPORT, required=True, help="the TCP port under attack")
    to = "forward to servers behind this machine (default: this machine's own addresses)"
    _add_prefixes(parser, "--to", "to", to)


def _synproxy_rule(args: argparse.Namespace) -> Rule:
    destinations = tuple(args.to)
    match = match_of(args, DPORT, destinations=destinations, protocol=TCP)
    if match.dport == 0:
        raise FwtopError("port 0 is not a TCP service; nothing was changed", 2)
    where = f" of {', '.join(map(str, destinations))}" if destinations else ""
    return Rule("", Kind.SYNPROXY, match, f"answer SYNs to port {match.dport}{where} with cookies", 0)


_WORDS = {"on": 1, "always": 2}


def _sysctl_arguments(parser: argparse.ArgumentParser) -> None:
    which = "setting to change (default: show all)"
    parser.add_argument("setting", nargs="*", metavar="NAME=VALUE", help=which)
    add_rule_options(parser, families=False)


def _sysctl(args: argparse.Namespace) -> int:
    if not args.setting:
        return _show_settings(args.netns, as_json=args.json)
    return carry_out(args, [_sysctl_rule(args)])


def _sysctl_rule(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    settings = tuple(_setting(text) for text in args.setting)
    if len({item.name for item in settings}) < len(settings):
        raise FwtopError("a setting is named twice; nothing was changed", 2)
    what = ", ".join(f"{TUNABLES[item.name].short} to {item.value}" for item in settings)
    return Rule("", Kind.SYSCTL, Match(), f"set {what}", args.ttl, created_by="cli", settings=settings)


def _setting(text: str) -> Setting:
    """Read NAME=VALUE, the name short or dotted; raises FwtopError (code 2)."""
    name, equals, value = text.partition("=")
    tunable = SHORT_NAMES.get(name) or TUNABLES.get(name)
    if tunable is None:
        line = f"{safe_text(name, limit=60)!r} is not a setting that fwtop changes; 'fwtop sysctl' lists them"
        raise FwtopError(line, 2)
    number = _WORDS.get(value, int(value) if value.isascii() and value.isdigit() else -1)
    if not equals or not tunable.low <= number <= tunable.high:
        line = f"{tunable.short} takes a number from {tunable.low} to {tunable.high}; nothing was changed"
        raise FwtopError(line, 2)
    return Setting(tunable.name, number)


def _show_settings(netns: str | None, *, as_json: bool) -> int:
    from fwtop.kernel import namespaces

    namespaces.enter_named(netns)
    values = {item.short: _value(item) for item in TUNABLES.values()}
    if as_json:
        print(json.dumps({"settings": values}))
        return 0
    for item in TUNABLES.values():
        value = values[item.short]
        print(f"{item.short:<38} {'-' if value is None else value:>10}  {item.text}")
    return 0


def _value(tunable: Tunable) -> int | None:
    try:
        return int(Path(tunable.path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


_STALE_SECONDS = 900
_CLOCK_STEP_SECONDS = 60  # that the clock may have been set back since


def _apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=positive, metavar="N", help="the proposal's number")
    flag(parser, "--old", "allow an observation older than 15 minutes")
    add_rule_options(parser, families=False)


def _apply(args: argparse.Namespace) -> int:
    from fwtop.cli.launcher import require_root
    from fwtop.cli.sessions.stored import run_unprivileged  # brings the store

    require_root("changing the firewall")
    netns = args.netns or namespaces.lasting_name()
    found = run_unprivileged(lambda: _last_proposal(args.number, netns))
    # Written by the unprivileged console: parse it as strictly as a message; the guard checks it again.
    try:
        if not args.old:
            _check_age(time.time() - float(found["at"]))
        rule = Rule.from_dict(found["rule"])
    except (ValueError, KeyError, TypeError):
        raise FwtopError("the stored proposal is invalid; nothing was changed") from None
    chosen = replace(
        rule,
        summary=safe_text(rule.summary),
        ttl_seconds=args.ttl,
        created_by=f"proposal {args.number}",
    )
    return carry_out(args, [chosen])


def _check_age(age: float) -> None:
    """Raise FwtopError for an observation that is old, or of no time that has been."""
    if -_CLOCK_STEP_SECONDS <= age <= _STALE_SECONDS:
        return
    when = f"{duration(age)} old" if age > _STALE_SECONDS else "of the future"
    raise FwtopError(
        f"the last observation is {when} and may be of another attack; nothing was "
        "changed; run 'fwtop snapshot' first, or add --old"
    )


def _last_proposal(number: int, netns: str | None) -> dict[str, Any]:
    from fwtop.store.reader import list_sessions, load_session

    for info in reversed(list_sessions()):
        if info.netns != netns or info.state == "damaged":
            continue
        snapshots = list(load_session(info.path).snapshots(1))
        if snapshots:
            last = snapshots[-1]
            break
    else:
        raise FwtopError("there is no observation yet; run 'fwtop snapshot' first")
    for proposal in last.judgement.proposals:
        if proposal.number == number:
            if proposal.rule is None:
                raise FwtopError(f"proposal {number} is advice, not a rule: {safe_text(proposal.summary)}")
            return {"rule": proposal.rule.to_dict(), "at": last.started + last.seconds}
    count = len(last.judgement.proposals)
    some = "proposal" if count == 1 else "proposals"
    raise FwtopError(f"the last observation has {count} {some} and no number {number}; nothing was changed")


VERBS = {
    "limit": _verb(
        "Limit the rate of each source prefix, or its open connections; the excess is dropped.",
        "fwtop limit --proto udp --dport 53 --per 24 --rate 1000/s --yes",
        _limit_arguments,
        _limit_rule,
    ),
    "match": _verb(
        "Drop packets whose payload contains a text, hex bytes, or a DNS name in wire format.",
        "fwtop match --dns attack.example.com --proto udp --dport 53 --yes",
        _match_arguments,
        _match_rule,
    ),
    "drop": _verb(
        "Drop packets by header fields: in the driver (XDP), at tc ingress, or at nftables' netdev ingress.",
        "fwtop drop --proto udp --sport 123 --length 400:500 --via xdp --yes",
        _drop_arguments,
        _drop_rule,
    ),
    "notrack": _verb(
        "Exempt packets and their replies from connection tracking.",
        "fwtop notrack --proto udp --dport 53 --yes",
        lambda parser: add_fields(parser, *_SERVICE),
        lambda args: Rule("", Kind.NOTRACK, match_of(args, *_SERVICE), "", 0),
    ),
    "synproxy": _verb(
        "Answer SYNs to a TCP port with cookies before connection tracking and the server see them; only "
        "finished handshakes go on. The kernel settings that this needs are changed and restored with the "
        "rule.",
        "fwtop synproxy --dport 443 --ttl 1h --yes",
        _synproxy_arguments,
        _synproxy_rule,
    ),
    "sysctl": Verb(
        "Show kernel settings that help under attack, or change some for a limited time.",
        "fwtop sysctl syncookies=on conntrack_max=1000000 --ttl 1h --yes",
        _sysctl_arguments,
        _sysctl,
        _sysctl_rule,
    ),
    "apply": Verb(
        "Install a proposal of the running or last observation, by its number.",
        "sudo fwtop snapshot && sudo fwtop apply 1 --preview",
        _apply_arguments,
        _apply,
    ),
}
