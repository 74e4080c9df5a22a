"""What helped, as a shell script that puts it back."""

from __future__ import annotations

from fwtop.model.command_line import command_line
from fwtop.model.text import safe_text
from fwtop.report.digest import Digest
from fwtop.report.effects import RuleEffect
from fwtop.report.wording import day_and_time, si


def rules_script(digest: Digest) -> str:
    """Write the rules that matched anything as `fwtop` commands; those that did nothing are left out."""
    info = digest.info
    lines = [
        "#!/bin/sh",
        f"# What helped in session {_comment(info.id)} on {_comment(info.host)}.",
        f"# {_comment(digest.headline)}; {day_and_time(info.started)}.",
        "# Each rule expires by itself; 'fwtop undo --all' takes all back. Run as root.",
        "set -eu",
    ]
    helped = [effect for effect in digest.effects if effect.packets]
    for effect in helped:
        lines += ["", *_rule_lines(effect)]
    if not helped:
        lines += ["", "# No rule of that session matched anything."]
    return "\n".join(lines) + "\n"


def _rule_lines(effect: RuleEffect) -> list[str]:
    rule = effect.rule
    lines = [
        f"# Rule {_comment(rule.id)}: {_comment(rule.summary)}",
        f"# It stopped {si(effect.actual_pps)} packets a second, {si(effect.packets)} in all.",
    ]
    lines += [f"#   as run then: {_comment(command)}" for command in effect.commands]
    line = command_line(rule, most_sources=None)
    lines.append(f"{line} --yes" if line else "# It has a condition that no command line can say.")
    return lines


def _comment(text: str) -> str:
    """Keep a text within its comment: no line break or control character is left in it."""
    return safe_text(text, limit=400)
