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

from fwtop.cli.options import add_netns, flag, option, seconds, whole
from fwtop.cli.rules.mitigation import measure
from fwtop.client import discovery
from fwtop.kernel import namespaces
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, POLICY_FORMATS
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.policy import transaction
from fwtop.policy.document import Policy, read
from fwtop.policy.live import Difference, Live, Trial
from fwtop.policy.schema import schema
from fwtop.policy.transaction import Planned, measurable
from fwtop.policy.versions import Versions
from fwtop.rules.overlap import as_one

HELP = (
    "A policy is a file of lists, protected ports, blocks, limits and signatures that are always in force. "
    "It is applied as a whole, on trial until you confirm it, and then survives restarts (docs/POLICY.md)."
)
EXAMPLE = "fwtop policy apply"
_POLICY_FILE = "/etc/fwtop/policy.toml"
_LINE = 4_096  # characters of a text's line that are printed


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    action = (
        "check the file; tell what it would change (diff), and whom that hits (plan); apply it; list the "
        "versions kept (history); show one's text; roll back to one; restore the last one at boot; export it "
        "for machines without fwtop; print the file's JSON schema"
    )
    parser.add_argument("action", choices=tuple(_ACTIONS), help=action)
    parser.add_argument(
        "number",
        nargs="?",
        type=whole("the number of a policy (a file goes with --file)", 0, 10**9 - 1),
        metavar="N",
        help="with rollback (default: the one before) and show (default: the last)",
    )
    option(parser, "--file", "FILE", f"default {_POLICY_FILE}", Path, default=Path(_POLICY_FILE))
    flag(parser, "--yes", "keep it without a trial")
    span = f"length of the trial (default {DEFAULT_CONFIRM_SECONDS}s)"
    option(parser, "--confirm", "TIME", span, seconds, default=float(DEFAULT_CONFIRM_SECONDS))
    flag(parser, "--force", "allow overly broad rules, and changes of lists above max_change")
    what = f"export: the format (default {POLICY_FORMATS[0]})"
    parser.add_argument("--format", choices=POLICY_FORMATS, default=POLICY_FORMATS[0], help=what)
    where = "export: write to this file (iptables: to this directory), not to standard output"
    option(parser, "-o --output", "FILE", where, Path)
    flag(parser, "--json", "with diff, plan, history and show: print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out one action."""
    if args.number is not None and args.action not in ("rollback", "show"):
        raise FwtopError(f"'fwtop policy {args.action}' takes no number; nothing was changed", 2)
    return _ACTIONS[args.action](args)


def _export(args: argparse.Namespace) -> int:
    """Write the file's policy for nftables, for iptables and ipset, or as a script."""
    from fwtop.policy.exports import write

    write(read(args.file), args.file.name, args.format, args.output)
    return 0


def _check(args: argparse.Namespace) -> int:
    policy = read(args.file)
    print(f"{args.file}: {policy.size} with {transaction.counted(policy)['entries']:,} entries")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return 0


def _diff(args: argparse.Namespace) -> int:
    """Print what applying the file would change; exit status 0 also where it would."""
    policy, versions = read(args.file), _versions(args)
    with _guardian(args.netns, readonly=True) as live:
        change = live.difference(policy, versions.newest_lists())
    if args.json:
        print(json.dumps(transaction.difference_document(change)))
    else:
        print("\n".join(transaction.difference_lines(change) or ["the policy is active as it is"]))
    return 0


def _plan(args: argparse.Namespace) -> int:
    """Print what applying the file would change, what the guard says of it, and whom it would hit now."""
    policy, versions = read(args.file), _versions(args)
    with _guardian(args.netns, readonly=True) as live:
        planned = Planned.of(live, policy, versions.newest_lists())
    rules = measurable(policy, planned.change)
    measured = measure([as_one(rules)], args.netns) if rules else None
    whole = measured[0] if measured else None
    if args.json:
        print(json.dumps(planned.document() | {"preview": plain(whole) if whole is not None else None}))
    else:
        print("\n".join(planned.lines(whole) or ["the policy is active as it is"]))
    return 1 if any(plan["refused"] for plan in planned.plans) else 0


def _apply(args: argparse.Namespace) -> int:
    return _bring_in(args, read(args.file), str(args.file))


def _rollback(args: argparse.Namespace) -> int:
    versions = _versions(args)
    version = transaction.before(versions, args.number)
    return _bring_in(args, versions.policy_of(version), f"rollback to {version.number}")


def _history(args: argparse.Namespace) -> int:
    versions = _versions(args)
    known = versions.all()
    if args.json:
        print(json.dumps(transaction.history(versions)))
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


def _show(args: argparse.Namespace) -> int:
    """Print the text of a version, into a file as it is; as JSON with what its lists held."""
    shown = transaction.shown(_versions(args), args.number)
    if args.json:
        print(json.dumps(shown))
    elif not sys.stdout.isatty():
        sys.stdout.write(shown["text"])
    else:
        print("\n".join(safe_text(line, limit=_LINE) for line in shown["text"].expandtabs().splitlines()))
    return 0


def _bring_in(args: argparse.Namespace, policy: Policy, note: str) -> int:
    """Try a policy, ask, and keep it or take it out again."""
    if not (args.yes or sys.stdin.isatty()):
        raise FwtopError("no terminal to ask for confirmation; nothing was changed; use --yes or diff", 2)
    span = 0 if args.yes else max(1, round(args.confirm))

    def told(change: Difference) -> None:
        for line in transaction.difference_lines(change):
            print(line)

    with _guardian(args.netns) as live:

        def asked(trial: Trial) -> bool:
            print(f"the policy is tried for {span} s; without an answer it is taken out again")
            while (answer := _answer(f"keep it? [y/N, r: {span} s more] ", trial.ends)) == "r":
                try:
                    live.renew_trial(trial, span)
                except FwtopError as error:
                    print(error)
            return answer in {"y", "yes"}

        outcome = transaction.bring_in(
            live, _versions(args), transaction.PolicyRequest(policy, note, span, args.force), told, asked
        )
    if outcome.unchanged:
        print("the policy is active as it is")
    elif outcome.version is None:
        print("the old policy acts again; nothing else was changed", file=sys.stderr)
        return 1
    else:
        version = outcome.version
        print(f"policy {version.number} is kept: {policy.size}")
    return 0


def _answer(question: str, end: float) -> str:
    print(question, end="", flush=True)
    if not select.select([sys.stdin], [], [], max(0.0, end - time.monotonic()))[0]:
        print("\nno answer in time")
        return ""
    return sys.stdin.readline().strip().lower()


def _boot(args: argparse.Namespace) -> int:
    return transaction.restore(_versions(args), args.file, lambda: _guardian(args.netns))


def _versions(args: argparse.Namespace) -> Versions:
    return versions_of(args.netns)


def versions_of(netns: str | None) -> Versions:
    """Return the versions of the namespace that is meant, also where the command itself runs within it."""
    return Versions(netns if netns is not None else namespaces.own_name())


@contextmanager
def _guardian(netns: str | None, *, readonly: bool = False) -> Iterator[Live]:
    with discovery.connect(netns=netns, readonly=readonly) as guardian:
        yield Live(guardian, versions_of(netns).modes())


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "check": _check, "diff": _diff, "plan": _plan, "apply": _apply, "history": _history, "show": _show,
    "rollback": _rollback, "boot": _boot, "export": _export, "schema": _schema,
}  # fmt: skip
