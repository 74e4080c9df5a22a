"""Read a policy's text in a process without rights, files and network; root reads what it made of it.

The text may be that of a program which is not root's, now (docs/API.md) or when an older version is put back.
So the parsers of TOML and of the command line see it in a child that can do nothing but answer. Its answer is
taken as a request is: rules field by field, lists by name and as text.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec.structs import replace

from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.errors import FwtopError
from fwtop.model.rule import POLICY
from fwtop.model.text import safe_text
from fwtop.policy.draft import SECONDS, Draft, read_draft
from fwtop.rules.kinds import of
from fwtop.sandbox.child import ask, mapped_bytes, unprivileged
from fwtop.sandbox.confine import limit
from fwtop.sandbox.syscalls import Profile

_CPU_SECONDS, _SECONDS = 30, 60.0
_MEMORY_BYTES = 1 << 30  # more than the process that is forked has mapped
_MOST_BYTES = 1 << 26  # of the answer
_SAMPLE = """schema = 1
[list.a]
[[port]]
service = "443/tcp"
acl = "a"
[[limit]]
per = 24
rate = "1/s"
[[signature]]
string = "x"
[[signature]]
dns = "example.com"
hex = "aa"
"""
_VERBS = frozenset({"protect", "block", "limit", "match"})  # that a policy's tables stand for


def draft_of(text: str, name: str) -> Draft:
    """Read a policy's text; raises FwtopError (code 2) as `read_draft`, or 1 if that could not be done."""
    who = f"{safe_text(name)}: its reader"
    said = ask(
        lambda: read_draft(text, name),
        Draft,
        who=who,
        enter=_confine,
        keep=(),
        seconds=_SECONDS,
        most_bytes=_MOST_BYTES,
    )
    try:
        return _checked(said)
    except ValueError:
        raise FwtopError(f"{who} made no policy of it; nothing was changed") from None


def _confine() -> None:
    with suppress(FwtopError):  # the last rule is wrong: now modules are loaded that can't be opened later
        read_draft(_SAMPLE, "")
    memory = mapped_bytes() + _MEMORY_BYTES
    os.chdir("/")
    unprivileged(Profile.DISSECTOR)
    limit(memory, cpu_seconds=_CPU_SECONDS)


def _checked(said: Draft) -> Draft:
    """Check what the child said; raises ValueError or FwtopError if it is no draft."""
    rules = tuple(rule_of_wire(rule.to_dict()) for rule in said.rules)
    unsaid = any(_VERBS.isdisjoint(of(rule.kind).verbs) for rule in rules)
    if unsaid or any(not said.tables.keys() >= set(rule.lists_used) for rule in rules):
        raise ValueError("a policy has no such rule")
    bare = (replace(rule, ttl_seconds=SECONDS, created_by=POLICY, replaces="") for rule in rules)
    return replace(said, rules=tuple(bare))
