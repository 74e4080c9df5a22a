"""fwtop policy: a file of lists and rules that is applied as a whole, and stays."""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.cli.options import add_netns, seconds
from fwtop.cli.policy.commit import commit, restore, undo_interrupted, uninterrupted
from fwtop.cli.policy.document import Policy, read
from fwtop.cli.policy.live import Difference, Live
from fwtop.cli.policy.schema import schema
from fwtop.cli.policy.versions import Versions, lists_of
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.render.numbers import percent

HELP = (
    "A policy says which lists, protected ports, blocks, limits and signatures are always in: applied as a "
    "whole, tried until you say y, then kept, also over a restart (docs/POLICY.md)."
)
EXAMPLE = "fwtop policy apply"
POLICY_FILE = "/etc/fwtop/policy.toml"
FORMATS = ("nft", "iptables", "sh")
_ACTIONS = ("check", "diff", "apply", "history", "rollback", "boot", "export", "schema")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "action",
        choices=_ACTIONS,
        help="check the file; tell what it would change; apply it; list the policies that were kept; go back "
        "to one; restore the last one after a restart; write it for machines without fwtop; print the file's "
        "JSON schema",
    )
    parser.add_argument(
        "number", nargs="?", type=_number, metavar="N", help="with rollback (default: the one before)"
    )
    parser.add_argument(
        "--file", type=Path, default=Path(POLICY_FILE), metavar="FILE", help=f"default {POLICY_FILE}"
    )
    parser.add_argument("--yes", action="store_true", help="keep it without trying it first")
    parser.add_argument(
        "--confirm",
        type=seconds,
        default=float(DEFAULT_CONFIRM_SECONDS),
        metavar="TIME",
        help=f"how long it is tried (default {DEFAULT_CONFIRM_SECONDS}s)",
    )
    parser.add_argument(
        "--force", action="store_true", help="install overly broad rules, and lists that change much"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help=f"of an export (default {FORMATS[0]})"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="export into this file, iptables into this directory, instead of standard output",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with diff and history: print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out one action."""
    if args.number is not None and args.action != "rollback":
        raise FwtopError(f"'fwtop policy {args.action}' takes no number; nothing was changed", 2)
    work: dict[str, Callable[[argparse.Namespace], int]] = {
        "check": _check,
        "diff": _diff,
        "apply": _apply,
        "history": _history,
        "rollback": _rollback,
        "boot": _boot,
        "export": _export,
        "schema": _schema,
    }
    return work[args.action](args)


def _export(args: argparse.Namespace) -> int:
    """Write the file's policy for nftables, for iptables and ipset, or as a script."""
    from fwtop.cli.policy.writing import write

    write(read(args.file), args.file.name, args.format, args.output)
    return 0


def _check(args: argparse.Namespace) -> int:
    policy = read(args.file)
    entries = sum(map(len, policy.lists.values()))
    print(f"{args.file}: {len(policy.rules)} rules, {len(policy.lists)} lists with {entries:,} entries")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return 0


def _diff(args: argparse.Namespace) -> int:
    """Print what applying the file would change; exit status 0 also where it would."""
    policy, versions = read(args.file), Versions(args.netns)
    with _guardian(args.netns, readonly=True) as live:
        change = live.difference(policy, lists_of(versions.all()[-1:]))
    if args.json:
        print(json.dumps(_document(change)))
    else:
        print("\n".join(difference_lines(change) or ["the policy is active as it is"]))
    return 0


def _apply(args: argparse.Namespace) -> int:
    policy = read(args.file)
    return _bring_in(args, policy, str(args.file))


def _rollback(args: argparse.Namespace) -> int:
    versions = Versions(args.netns)
    known = versions.all()
    if args.number is None and len(known) < 2:
        raise FwtopError("there is no policy before this one; nothing was changed; see policy history")
    version = versions.find(args.number) if args.number is not None else known[-2]
    return _bring_in(args, versions.policy_of(version), f"rollback to {version.number}")


def _history(args: argparse.Namespace) -> int:
    versions = Versions(args.netns)
    known = versions.all()
    if args.json:
        shown = [{"number": one.number, "kept": one.kept, "note": one.note} for one in known]
        print(json.dumps({"versions": shown}))
        return 0
    for version in known:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(version.kept))
        now = "  active" if version is known[-1] else ""
        print(f"{version.number:>4}  {when}  {safe_text(version.note)}{now}")
    for name in versions.unreadable():
        print(f"warning: {safe_text(name)} is damaged", file=sys.stderr)
    if not known:
        print("no policy was kept yet")
    return 0


def _bring_in(args: argparse.Namespace, policy: Policy, note: str) -> int:
    """Try a policy, ask, and keep it or take it out again."""
    if not (args.yes or sys.stdin.isatty()):
        raise FwtopError("no terminal to ask for confirmation; nothing was changed; use --yes or diff", 2)
    versions = Versions(args.netns)
    with versions.locked(), _guardian(args.netns) as live:
        undo_interrupted(live, versions)
        old = lists_of(versions.all()[-1:])
        change = live.difference(policy, old)
        for line in difference_lines(change):
            print(line)
        too_much = [item for item in change.lists if item.before and item.share > policy.max_change]
        if too_much and not args.force:
            first = too_much[0]
            raise FwtopError(
                f"{percent(first.share)} of list {first.name} would change, at most "
                f"{percent(policy.max_change)} may (max_change); nothing was changed; --force does it"
            )
        if not change and versions.all() and versions.all()[-1].text == policy.text:
            print("the policy is active as it is")
            return 0
        kept = False
        with _tried(args, live, policy, change) as wanted:
            if wanted:
                version = commit(live, versions, policy, note, force=args.force)
                kept = True
    if not kept:
        print("the old policy acts again; nothing else was changed", file=sys.stderr)
        return 1
    print(f"policy {version.number} is kept: {len(policy.rules)} rules, {len(policy.lists)} lists")
    return 0


@contextmanager
def _tried(args: argparse.Namespace, live: Live, policy: Policy, change: Difference) -> Iterator[bool]:
    """Install a policy for a while and ask; the rules of the trial go once it is kept, or is not to be."""
    if args.yes or not change:
        yield True
        return
    span = max(1, round(args.confirm))
    trial = live.put_on_trial(policy, change, span, force=args.force)
    kept = False
    try:
        end = time.monotonic() + span
        print(f"the policy is tried for {span} s; without an answer it is taken out again")
        wanted = _answer("keep it? [y/N] ", end)
        yield wanted
        kept = wanted
    finally:
        with uninterrupted():
            live.end_trial(trial, keep_lists=kept)


def _answer(question: str, end: float) -> bool:
    print(question, end="", flush=True)
    if not select.select([sys.stdin], [], [], max(0.0, end - time.monotonic()))[0]:
        print("\nno answer in time")
        return False
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _boot(args: argparse.Namespace) -> int:
    return restore(Versions(args.netns), args.file, lambda: _guardian(args.netns))


def difference_lines(change: Difference) -> list[str]:
    """Return what would change, a line each."""
    lines = [f"+ list {name}" for name in change.new_lists]
    lines += [f"~ list {item.name}: {item.added:,} added, {item.removed:,} removed" for item in change.lists]
    lines += [f"+ {_told(rule)}" for rule in change.added]
    lines += [f"- {_told(rule)} (rule {rule.id})" for rule in change.removed]
    return lines + [f"- list {name}" for name in change.gone_lists]


def _told(rule: Rule) -> str:
    priority = f", priority {rule.protection.priority}" if rule.protection is not None else ""
    return f"{safe_text(rule.summary)} [{rule.kind.value}{priority}]"


def _document(change: Difference) -> dict[str, object]:
    return {
        "added": [rule.summary for rule in change.added],
        "removed": [{"id": rule.id, "summary": rule.summary} for rule in change.removed],
        "new_lists": change.new_lists,
        "changed_lists": [
            {"name": item.name, "added": item.added, "removed": item.removed} for item in change.lists
        ],
        "gone_lists": change.gone_lists,
    }


@contextmanager
def _guardian(netns: str | None, *, readonly: bool = False) -> Iterator[Live]:
    from fwtop.client import discovery

    with discovery.connect(netns=netns, readonly=readonly) as guardian:
        yield Live(guardian)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not the number of a policy")
    return int(text)
