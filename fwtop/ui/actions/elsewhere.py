"""What the screen may not do, because it parses what attackers send: the command for another terminal."""

from __future__ import annotations

from collections.abc import Mapping

from fwtop.model.console_scope import owner_elsewhere
from fwtop.model.rule import POLICY, POLICY_TRIAL, Rule
from fwtop.model.text import safe_text
from fwtop.rules.command_line import command_line
from fwtop.ui.drawing.style import STRONG, TEXT, Line

_OF_A_RULE: Mapping[str, str] = {
    "confirm": "fwtop keep {id}",
    "extend": "fwtop keep {id} --ttl 1d",
    "remove": "fwtop undo {id}",
}
_OF_A_POLICY = "fwtop policy apply"


def command_elsewhere(verb: str, rule: Rule, netns: str | None) -> str:
    """Return the command that does to a rule what a key may not; "" where the key may."""
    if not owner_elsewhere(rule):
        return ""
    words = _OF_A_RULE.get(verb, "").format(id=rule.id)
    if rule.created_by == POLICY_TRIAL or (rule.created_by == POLICY and verb != "remove"):
        words = _OF_A_POLICY
    words = words or command_line(rule) or "fwtop protect"
    return f"sudo {safe_text(words)}{f' --netns {safe_text(netns)}' if netns else ''}"


def lines_elsewhere(rule: Rule, command: str) -> list[Line]:
    """Say why a key does nothing, and what does."""
    of_policy = rule.created_by in (POLICY, POLICY_TRIAL)
    hint = {
        POLICY: "A policy's rules change with its file, and come back until it is applied without them.",
        POLICY_TRIAL: "It is decided where 'fwtop policy apply' asks.",
    }.get(rule.created_by, "")
    what = "policies" if of_policy else "protected ports"
    return [
        [(safe_text(rule.summary), STRONG)],
        [(f"The screen changes no {what}. In another terminal:", TEXT)],
        [],
        [(f"  {command}", STRONG)],
        *([[], [(hint, TEXT)]] if hint else []),
    ]
