"""`fwtop apply N`: install a proposal of the running or the last observation."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

from fwtop.cli.mitigation import add_rule_options, carry_out, duration
from fwtop.cli.options import positive
from fwtop.cli.unprivileged import run_unprivileged
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text

NAME = "apply"
HELP = "Install a proposal of the running or the last observation, by its number."
EXAMPLE = "sudo fwtop snapshot && sudo fwtop apply 1 --preview"
_STALE_SECONDS = 900


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("number", type=positive, metavar="N", help="the proposal's number")
    parser.add_argument("--old", action="store_true", help="also from an observation of over 15 minutes ago")
    add_rule_options(parser, families=False)


def run(args: argparse.Namespace) -> int:
    """Find the proposal and carry it out."""
    from fwtop.cli.launcher import require_root

    require_root("changing the firewall")
    found = run_unprivileged(lambda: _last_proposal(args.number, args.netns))
    age = time.time() - float(found["at"])
    if age > _STALE_SECONDS and not args.old:
        raise FwtopError(
            f"the last observation is {duration(int(age))} old and may be of another attack; nothing was "
            "changed; run 'fwtop snapshot' first, or add --old"
        )
    # Written by the unprivileged console: read as strictly as a message, and the guard looks again.
    try:
        rule = Rule.from_dict(found["rule"])
    except (ValueError, KeyError, TypeError):
        raise FwtopError("the stored proposal is not understood; nothing was changed") from None
    return carry_out(
        args, [dataclasses.replace(rule, ttl_seconds=args.ttl, created_by=f"proposal {args.number}")]
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
                raise FwtopError(
                    f"proposal {number} is advice and nothing to install: {safe_text(proposal.summary)}"
                )
            return {"rule": proposal.rule.to_dict(), "at": last.started + last.seconds}
    count = len(last.judgement.proposals)
    some = "proposal" if count == 1 else "proposals"
    raise FwtopError(f"the last observation has {count} {some} and no number {number}; nothing was changed")
