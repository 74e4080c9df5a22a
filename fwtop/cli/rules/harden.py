"""fwtop harden: playbooks, with what each would do here; planned by reading, applied as one rule."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from fwtop.cli.options import flag, option
from fwtop.cli.rules.mitigation import add_rule_options, can_ask, carry_out
from fwtop.cli.sessions.stored import StoredSession, run_unprivileged
from fwtop.harden.playbook import DEFAULT_TTL_SECONDS, PLAYBOOKS, Options, Plan, find
from fwtop.kernel import namespaces
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.store.directory import SESSION_DIRECTORY
from fwtop.store.reader import replay

HELP = (
    "Playbooks against what a rule alone does not solve: without a name, what each would do here. "
    "What one applies is one rule: confirmed, undone and ended as a whole (docs/HARDEN.md)."
)
EXAMPLE = "fwtop harden conntrack --apply --ttl 2h"
_LINE = 1000
_MOST_CLIENTS = 400  # of a session


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("playbook", nargs="?", choices=PLAYBOOKS, help="default: list all")
    flag(parser, "--apply", "apply it: on trial until confirmed (default: only read, and explain)")
    session = "stateless: replay the clients of this stored session (id, unique prefix or file) as well"
    option(parser, "--session", "SESSION", session)
    add_rule_options(parser, families=False, default_ttl="1h")
    parser.set_defaults(ttl=DEFAULT_TTL_SECONDS)


def run(args: argparse.Namespace) -> int:
    """List the playbooks, plan one, or apply it."""
    if args.playbook is None:
        if args.apply:
            raise FwtopError("--apply needs the name of a playbook; nothing was changed", 2)
        with _inside(args.netns):
            return _list(args)
    if args.apply:
        can_ask(args)
    rule = _planned(args)
    if rule is None or not args.apply:
        return 0
    return carry_out(args, [rule])


def _planned(args: argparse.Namespace) -> Rule | None:
    """Show the plan of a playbook, and return its rule; raises FwtopError where it can't be applied."""
    with _inside(args.netns):
        found = find(args.playbook).plan(_options(args))
    if args.json and not args.apply:
        print(json.dumps(_document(args.playbook, found)))
    else:
        show(args.playbook, found, sys.stderr if args.json else sys.stdout)
    if args.apply and found.refused:
        raise FwtopError(f"refused: {safe_text(found.refused, limit=_LINE)}; nothing was changed")
    return found.rule


@contextlib.contextmanager
def _inside(netns: str | None) -> Iterator[None]:
    """Read in a named namespace (None: this one); raises FwtopError where there is none."""
    os.close(namespaces.open_netns(netns))
    with contextlib.nullcontext() if netns is None else namespaces.inside(netns):
        yield


def _options(args: argparse.Namespace) -> Options:
    return Options(args.ttl, clients=_clients(args.session) if args.session else ())


def _clients(session: str) -> tuple[str, ...]:
    """Return the addresses that a stored session saw, the busiest first; raises FwtopError."""
    stored = StoredSession(session, SESSION_DIRECTORY)
    found = run_unprivileged(lambda: _sources(stored), list[str], read=(SESSION_DIRECTORY,))
    try:  # written by the unprivileged console
        return tuple(str(ipaddress.ip_address(address)) for address in found[:_MOST_CLIENTS])
    except ValueError:
        raise FwtopError("the stored session is invalid; nothing was changed") from None


def _sources(session: StoredSession) -> list[str]:
    sums: Counter[str] = Counter()
    with session.located() as path:
        for snapshot in replay(path):
            for source in snapshot.tables.sources.address:
                sums[source.key] += source.share.packets
    return [address for address, _ in sums.most_common(_MOST_CLIENTS)]


def _list(args: argparse.Namespace) -> int:
    documents = []
    for name in PLAYBOOKS:
        playbook = find(name)
        try:
            found = playbook.plan(_options(args))
        except FwtopError as error:
            found = Plan(str(error), refused=str(error))
        documents.append(_document(name, found))
        if not args.json:
            print(f"{name:<10} {playbook.TITLE}")
            print(f"{'':<10} here: {safe_text(found.here, limit=_LINE)}")
    if args.json:
        print(json.dumps({"playbooks": documents}))
    else:
        print("'fwtop harden NAME' explains one, --apply carries it out and takes it back unless you confirm")
    return 0


def show(name: str, found: Plan, to: TextIO) -> None:
    """Print a plan."""
    print(f"{name}: {safe_text(found.here, limit=_LINE)}", file=to)
    blocks = (
        ("found", found.findings),
        ("applying it would, in this order", found.steps),
        ("stays as it is", found.kept),
        ("only you can change, in the service's own configuration", found.snippets),
    )
    for title, lines in blocks:
        if lines:
            print(f"  {title}:", file=to)
        for line in lines:
            print(f"    {safe_text(line, limit=_LINE)}", file=to)
    if found.refused:
        print(f"  refused: {safe_text(found.refused, limit=_LINE)}", file=to)


def _document(name: str, found: Plan) -> dict[str, object]:
    return {"playbook": name, "title": find(name).TITLE, **plain(found)}
