"""Conditions compiled into a program for XDP, before there is a packet, or for tc ingress."""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts
from fwtop.model.address import Prefix
from fwtop.model.rule import Kind, Rule
from fwtop.model.xdp import check_xdp

_ATTACH = "some drivers reset the interface for a moment when the first XDP program is attached"


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> Artifacts:  # noqa: ARG001 - the allow-list comes first
    """Return the rule as one for the fast path; raises FwtopError (code 2) on what can't be compiled."""
    check_xdp(rule)
    return Artifacts((), (), (_ATTACH,) if rule.kind is Kind.XDP else (), compiled=rule)
