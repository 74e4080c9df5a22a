"""Automatic rules: a recorder installs them within the operator's policy, and removes wrong ones.

The policy is /etc/fwtop/automatic.toml; nothing is automatic without it, or if it has errors.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fwtop.model.files import ConfigText
from fwtop.model.rule import Kind
from fwtop.model.settings_file import must, read, some_of
from fwtop.rules.kinds import filters

FILE = "/etc/fwtop/automatic.toml"
_RULES = tuple(kind.value for kind in (*filters(), Kind.SYNPROXY))


class Policy(Struct, frozen=True):
    """The settings; docs/automatic.toml documents each."""

    enabled: bool = False
    shadow: bool = False
    rules: Annotated[tuple[str, ...], some_of(_RULES, least=1)] = _RULES
    # kinds; none: all
    attacks: Annotated[tuple[str, ...], must("a list of kinds of attacks, as in docs/JSON.md")] = ()
    confidence: Annotated[float, Meta(ge=0.5, le=1)] = 0.9
    harm: Annotated[float, Meta(ge=0, le=0.5)] = 0.01
    clients: Annotated[float, Meta(ge=0, le=0.5)] = 0.01
    stops: Annotated[float, Meta(ge=0.05, le=1)] = 0.5
    after_seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.5
    trial_seconds: Annotated[float, Meta(ge=5, le=300)] = 10.0
    ttl_seconds: Annotated[int, Meta(ge=60, le=86_400)] = 600
    most_rules: Annotated[int, Meta(ge=1, le=64)] = 8
    lost_handshakes: Annotated[float, Meta(ge=0.05, le=1)] = 0.2


def read_policy(file: ConfigText | None) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy, and what is wrong in the file: then nothing is automatic."""
    found = read(Policy, file)
    return Policy() if found.mistakes else found.value, found.lines("nothing is automatic")
