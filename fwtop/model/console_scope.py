"""What a console may ask of the guardian: what its keys and its automatic rules need, and nothing else.

The console parses what attackers send. Whoever takes it over holds its connections, so the guardian grants
them only requests whose class says `for_console`, and of rules those that `why_not` lets through. The screen
knows the same, and shows the command for another terminal instead of asking.
"""

from __future__ import annotations

from fwtop.model.protocol import Apply, Keep, Request, RuleChange, RuleMode, Undo
from fwtop.model.rule import POLICY, POLICY_TRIAL, Mode, Rule

AUTOMATIC = "automatic"  # who made a rule that nobody asked for
CONSOLE = "console: "  # how `created_by` of its rules begins
MAX_TTL_SECONDS = 86_400
MAX_TRIAL_SECONDS = 600
MAX_RULES = 96  # active at once that a console made: more than automatic rules and an operator's keys
_DAY = "a screen's rules stay for a day at most"


def refusal(request: Request) -> str:
    """Return why a console may not make a request, "" if it may."""
    why = _too_much(request) if request.for_console else f"a screen may not ask for {request.verb()}"
    elsewhere = f"; in another terminal: sudo {request.command}" if request.command else ""
    return f"{why}{elsewhere}; nothing was changed" if why else ""


def _too_much(request: Request) -> str:
    """Return how a request goes further than a console may, "" if it doesn't."""
    match request:
        case Apply() | RuleChange() | RuleMode(mode=Mode.DROP) if (
            not 1 <= request.confirm_seconds <= MAX_TRIAL_SECONDS
        ):
            return f"confirm_seconds: a screen's rules are on trial first, for 1 to {MAX_TRIAL_SECONDS} s"
        case Keep() if (request.ttl_seconds or 0) > MAX_TTL_SECONDS:
            return _DAY
        case Undo() if request.all:
            return "all: a screen takes rules back one by one"
    return ""


def made_by_console(rule: Rule) -> bool:
    """Whether a console asked for a rule."""
    return rule.created_by.startswith(CONSOLE)


def maker(rule: Rule) -> str:
    """Return what a console said of who made a rule: "key", "proposal 3", "automatic"; or who else did."""
    return rule.created_by.removeprefix(CONSOLE)


def owner_elsewhere(rule: Rule) -> str:
    """Return what a rule is part of that no console may change, "" for one that keys may."""
    if rule.created_by in (POLICY, POLICY_TRIAL):
        return "the policy"
    return "a protected port" if rule.protection is not None else ""


def why_not(rule: Rule) -> str:
    """Return why a console may not install a rule, apart from what the guard says; "" if it may."""
    if rule.ttl_seconds > MAX_TTL_SECONDS:
        return f"ttl_seconds: {_DAY}"
    if any(part.protection is not None for part in (rule, *rule.parts)):
        return "a screen may not protect ports"
    return "mended: a screen may not have rules repaired by themselves" if rule.mended else ""
