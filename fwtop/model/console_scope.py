"""What a console may ask of the guardian: what its keys and its automatic rules need, and nothing else.

The console parses what attackers send. Whoever takes it over holds its connections, so the guardian grants
them no more than REQUESTS lists, and of rules those that `why_not` lets through. The screen knows the same
table, and shows the command for another terminal instead of asking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fwtop.model.protocol import (
    Apply,
    Connect,
    Hello,
    Keep,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    PolicyChange,
    PolicyRead,
    Repair,
    Request,
    Rescan,
    RuleRead,
    Rules,
    Status,
    Survey,
    Symbols,
    Undo,
    Watch,
    Why,
)
from fwtop.model.rule import POLICY, POLICY_TRIAL, Kind, Rule

CONSOLE = "console: "  # how `created_by` of its rules begins
MAX_TTL_SECONDS = 86_400
MAX_TRIAL_SECONDS = 600
MAX_RULES = 96  # active at once that a console made: more than automatic rules and an operator's keys
KINDS = frozenset(  # of rules: everything but a port's protection
    {Kind.IPSET, Kind.HASHLIMIT, Kind.STRING, Kind.XDP, Kind.TC, Kind.NFTABLES}
    | {Kind.NOTRACK, Kind.SYNPROXY, Kind.CONNLIMIT, Kind.SYSCTL, Kind.HARDEN}
)
_DAY = "a screen's rules stay for a day at most"


def _always(_: Any) -> str:  # noqa: ANN401 - of each type of request
    return ""


def _on_trial(request: Apply) -> str:
    if 1 <= request.confirm_seconds <= MAX_TRIAL_SECONDS:
        return ""
    return f"confirm_seconds: a screen's rules are on trial first, for 1 to {MAX_TRIAL_SECONDS} s"


def _for_a_day(request: Keep) -> str:
    return _DAY if request.ttl_seconds is not None and request.ttl_seconds > MAX_TTL_SECONDS else ""


def _by_id(request: Undo) -> str:
    return "all: a screen takes rules back one by one" if request.all else ""


# What is not here is refused. Each function returns why one request is, "" if it isn't.
REQUESTS: Mapping[type[Request], Callable[[Any], str]] = {
    **dict.fromkeys(
        (Hello, Connect, Watch, Rescan, Survey, Symbols, Rules, RuleRead, Status, Why, Plan), _always
    ),
    Apply: _on_trial,
    Keep: _for_a_day,
    Undo: _by_id,
    Repair: _always,
}
_COMMANDS: Mapping[type[Request], str] = {  # that do the rest
    **dict.fromkeys((ListChange, ListShow, ListTest, ListRead), "fwtop list"),
    **dict.fromkeys((PolicyRead, PolicyChange), "fwtop policy"),
    Keep: "fwtop keep",
    Undo: "fwtop undo",
}


def refusal(request: Request) -> str:
    """Return why a console may not make a request, "" if it may."""
    check = REQUESTS.get(type(request))
    why = f"a screen may not ask for {type(request).__name__.lower()}" if check is None else check(request)
    command = _COMMANDS.get(type(request))
    return (
        f"{why}{f'; in another terminal: sudo {command}' if command else ''}; nothing was changed"
        if why
        else ""
    )


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
    return "a protected port" if rule.kind is Kind.PROTECT else ""


def why_not(rule: Rule) -> str:
    """Return why a console may not install a rule, apart from what the guard says; "" if it may."""
    kinds = {rule.kind} | rule.kinds
    if rule.ttl_seconds > MAX_TTL_SECONDS:
        return f"ttl_seconds: {_DAY}"
    if not kinds <= KINDS:
        return "a screen may not protect ports"
    return "mended: a screen may not have rules repaired by themselves" if rule.mended else ""
