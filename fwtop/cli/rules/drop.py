"""fwtop drop: drop packets by header fields in XDP, at tc ingress or at netdev ingress."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fwtop.cli.options import read_as
from fwtop.cli.rules.mitigation import add_rule_options, carry_out, port, prefix, protocol
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Range, Rule
from fwtop.model.traffic.protocols import read_flags
from fwtop.rules.words import with_summary

HELP = "Drop packets by header fields: in the driver (XDP), at tc ingress, or at nftables' netdev ingress."
EXAMPLE = "fwtop drop --proto udp --sport 123 --length 400:500 --via xdp --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, icmp, … or a number")
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], type=prefix, metavar="PREFIX",
        help="only from these sources (default: all)",
    )  # fmt: skip
    parser.add_argument("--sport", type=port, metavar="N", help="source port")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    parser.add_argument("--length", type=_range(65535), metavar="A:B", help="IP total length in bytes")
    parser.add_argument("--ttl-field", type=_range(255), metavar="A:B", help="TTL or hop limit of the packet")
    parser.add_argument(
        "--tcp-flags",
        type=read_as(read_flags),
        metavar="M/F",
        help="of the flags M exactly F are set: syn,ack/syn",
    )
    parser.add_argument("--ip-id", type=_range(65535), metavar="A:B", help="IPv4 identification")
    parser.add_argument("--tcp-seq", type=_range(0xFFFF_FFFF), metavar="A:B", help="TCP sequence number")
    parser.add_argument("--window", type=_range(65535), metavar="A:B", help="TCP window, as in the header")
    parser.add_argument(
        "--tcp-header", type=_range(60), metavar="A:B", help="TCP header length in bytes; 20 means no options"
    )
    parser.add_argument("--icmp-type", type=_icmp_type, metavar="N", help="ICMP or ICMPv6 type")
    parser.add_argument("--fragment", action="store_true", help="fragments only")
    parser.add_argument(
        "--via",
        choices=("xdp", "tc", "nftables"),
        required=True,
        help="where to drop: in the driver, at tc ingress, or at nftables' netdev ingress",
    )
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the rule."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    match = Match(
        sources=tuple(args.sources),
        family=args.family,
        protocol=args.proto,
        sport=args.sport,
        dport=args.dport,
        ip_length=args.length,
        ttl=args.ttl_field,
        tcp_flags=args.tcp_flags,
        fragment=True if args.fragment else None,
        icmp_type=args.icmp_type,
        ip_id=args.ip_id,
        tcp_seq=args.tcp_seq,
        tcp_window=args.window,
        tcp_header=args.tcp_header,
    )
    if match == Match(match.sources, family=args.family):
        raise FwtopError(
            "a drop needs at least one field, or it would drop everything (of a source: fwtop block); "
            "nothing was changed",
            2,
        )
    return with_summary(Rule("", Kind(args.via), match, "", args.ttl, created_by="cli"))


def _icmp_type(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 255):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an ICMP type from 0 to 255")
    return int(text)


def _range(most: int) -> Callable[[str], Range]:
    def read(text: str) -> Range:
        low, colon, high = text.partition(":")
        ends = [low or "0", (high or str(most)) if colon else low]
        if not all(end.isascii() and end.isdigit() and int(end) <= most for end in ends) or not low + high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a range like 40:100 up to {most}")
        if int(ends[0]) > int(ends[1]):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is reversed")
        return Range(int(ends[0]), int(ends[1]))

    return read
