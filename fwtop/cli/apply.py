"""fwtop apply: install a proposal of the running or last observation."""

from __future__ import annotations

import argparse
import time
from typing import Any

from msgspec.structs import replace

from fwtop.cli.mitigation import add_rule_options, carry_out
from fwtop.cli.options import flag, positive
from fwtop.cli.stored import run_unprivileged
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.render.numbers import duration
from fwtop.store.reader import list_sessions, load_session

HELP = "Install a proposal of the running or last observation, by its number."
EXAMPLE = "sudo fwtop snapshot && sudo fwtop apply 1 --preview"
_STALE_SECONDS = 900
_CLOCK_STEP_SECONDS = 60  # that the clock may have been set back since


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("number", type=positive, metavar="N", help="the proposal's number")
    flag(parser, "--old", "allow an observation older than 15 minutes")
    add_rule_options(parser, families=False)


def run(args: argparse.Namespace) -> int:
    """Find the proposal and install it."""
    from fwtop.cli.launcher import require_root

    require_root("changing the firewall")
    found = run_unprivileged(lambda: _last_proposal(args.number, args.netns))
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
