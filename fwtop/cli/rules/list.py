"""fwtop list: named lists of addresses and prefixes, changed in transactions, which rules share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from fwtop.cli.options import add_netns, flag, option, ttl
from fwtop.client import discovery
from fwtop.model.addresses.address import Prefix, check_name
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.addresses.prefix_list import entry_texts, listed_entries, together
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.protocol import LIST_ACTIONS, ListChange, ListShow, ListTest
from fwtop.model.text import safe_text
from fwtop.render.numbers import duration

HELP = (
    "Named lists of addresses and prefixes, optionally with ports or destinations, that rules of "
    "'fwtop block --list NAME' share (via ipset, xdp, tc or nftables). A change is made completely or "
    "not at all."
)
EXAMPLE = "fwtop list create scanners 198.51.100.0/24 2001:db8::/32 --ttl 1d"
_ACTIONS = (*LIST_ACTIONS, "test", "show", "save")
_TAKE_ENTRIES = ("create", "add", "remove", "replace")
_WRITTEN_AT_ONCE = 10_000  # lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = "show (the default) lists all without a NAME; the others need one"
    parser.add_argument("action", nargs="?", default="show", choices=_ACTIONS, help=what)
    parser.add_argument("name", nargs="?", metavar="NAME")
    entry = (
        "addresses and prefixes; or all with a destination port: 192.0.2.7:443/tcp, "
        "10.0.0.0/8:8000-8100/udp, [2001:db8::/32]:53/udp; or pairs of source and destination: "
        "192.0.2.0/24,198.51.100.7; @- reads standard input"
    )
    parser.add_argument("entry", nargs="*", metavar="ENTRY|@FILE", help=entry)
    option(parser, "--ttl", "TIME", "the entries expire after 30s, 10m, 2h, 1d (default: never)", ttl)
    flag(parser, "--force", "change it even if that makes a rule overly broad")
    option(parser, "-o --output", "FILE", "save to this file instead of standard output")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out one action on a list."""
    _check(args)
    work: dict[str, Callable[[argparse.Namespace], int]] = {"show": _show, "test": _test, "save": _save}
    return work.get(args.action, _change)(args)


def _check(args: argparse.Namespace) -> None:
    action, given = args.action, len(args.entry)
    if args.name is None and action != "show":
        raise FwtopError(f"'fwtop list {action}' needs the name of a list; nothing was changed", 2)
    if args.name is not None:
        check_name(args.name)
    if action not in (*_TAKE_ENTRIES, "test") and given:
        saving = ": it prints them, redirect that" if action == "save" else ""
        raise FwtopError(f"'fwtop list {action}' takes no entries{saving}; nothing was changed", 2)
    if action in ("add", "remove", "replace") and not given:
        raise FwtopError(f"'fwtop list {action}' needs prefixes or @FILE; nothing was changed", 2)
    if action == "test" and given != 1:
        raise FwtopError("'fwtop list test' needs one address or prefix", 2)
    if args.ttl is not None and action not in ("create", "add", "replace"):
        raise FwtopError(f"--ttl does not go with 'fwtop list {action}'; nothing was changed", 2)
    if args.output is not None and action != "save":
        raise FwtopError("--output goes with 'fwtop list save'; nothing was changed", 2)


def entries_of(given: Sequence[str]) -> Sequence[Prefix]:
    """Return the prefixes that were named, and those in files; raises FwtopError."""
    files = [item for item in given if item.startswith("@")]
    texts = [item for item in given if not item.startswith("@")]
    named = listed_entries(texts)
    if not files:
        return named
    return together([named, *(read_prefix_file(name[1:], for_list=True) for name in files)])


def _change(args: argparse.Namespace) -> int:
    entries = entries_of(args.entry)
    request = ListChange(args.name, args.action, args.ttl, args.force)
    with discovery.connect(netns=args.netns) as guardian:
        data = guardian.change_list(request, entries).data
    if args.json:
        print(json.dumps({"name": args.name, **data}))
        return 0
    print(f"list {args.name}: {_outcome(args, len(entries), data)}")
    return 0


def _outcome(args: argparse.Namespace, given: int, data: dict[str, Any]) -> str:
    if args.action == "delete":
        return "deleted"
    words = [f"{data[name]:,} {name}" for name in ("added", "removed") if data[name]]
    if data["renewed"]:
        end = "to stay" if args.ttl is None else f"to end in {duration(args.ttl)}"
        words.append(f"{data['renewed']:,} listed already, {end}")
    if args.action == "remove" and given > data["removed"]:
        words.append(f"{given - data['removed']:,} not listed")
    return f"{', '.join(words) or 'nothing to change'}; it holds {data['entries']:,}"


def _test(args: argparse.Namespace) -> int:
    data = discovery.ask(args.netns, ListTest(args.name, args.entry[0]), readonly=True)
    if args.json:
        print(json.dumps({"name": args.name, **data}))
    elif data["entry"] is None:
        print(f"{safe_text(args.entry[0])} is not in list {args.name}")
    else:
        left = data["seconds_left"]
        ends = f", for another {duration(left)}" if left is not None else ""
        print(f"{safe_text(args.entry[0])} is in list {args.name}: {safe_text(data['entry'])}{ends}")
    return 0 if data["entry"] is not None else 1


def _show(args: argparse.Namespace) -> int:
    data = discovery.ask(args.netns, ListShow(args.name or ""), readonly=True)
    if args.json:
        print(json.dumps(data))
        return 0
    print("\n".join(show_lines(data["lists"])))
    return 0


def show_lines(lists: Iterable[dict[str, Any]]) -> list[str]:
    """Return a table of lists, and the busiest entries where they are told."""
    lines = [f"{'NAME':<18} {'IPV4':>10} {'IPV6':>10} {'TIMED':>9} {'MEMORY':>10} {'IN IPSETS':>10}  RULES"]
    for item in lists:
        rules = ", ".join(map(safe_text, item["rules"])) or "-"
        lines.append(
            f"{safe_text(item['name']):<18} {item['ipv4']:>10,} {item['ipv6']:>10,} {item['timed']:>9,} "
            f"{_size(item['bytes']):>10} {_size(item['kernel_bytes']):>10}  {rules}"
            f"{'  (with ports)' if item['ports'] else '  (pairs)' if item.get('pairs') else ''}"
        )
        for entry, packets in item.get("busiest", {}).items():
            lines.append(f"  {safe_text(entry):<43} {packets:>12,} packets")
    return lines if len(lines) > 1 else ["no lists; 'fwtop list create NAME' makes one"]


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / 1024:.1f} KiB"


def _save(args: argparse.Namespace) -> int:
    with discovery.connect(netns=args.netns, readonly=True) as guardian:
        entries, left = guardian.read_list(args.name)
    if args.output is None:
        _write(sys.stdout, entries, left)
        return 0
    try:
        with replacing(Path(args.output)) as file:
            _write(file, entries, left)
    except OSError as error:
        line = f"cannot write {safe_text(args.output)}: {error.strerror}; the file is as it was"
        raise FwtopError(line) from None
    return 0


def _write(file: IO[str], entries: Sequence[Prefix], left: Sequence[float]) -> None:
    """Write one entry a line, as `fwtop list replace` reads them; a comment says what ends when."""
    lines: list[str] = []
    for at, text in enumerate(entry_texts(entries)):
        ends = f"  # {duration(left[at])} left" if len(left) and left[at] else ""
        lines.append(f"{text}{ends}\n")
        if len(lines) == _WRITTEN_AT_ONCE:
            file.write("".join(lines))
            lines.clear()
    file.write("".join(lines))
