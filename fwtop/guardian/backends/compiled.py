"""Conditions compiled into a program for XDP, before there is a packet, or for tc ingress."""

from __future__ import annotations

from fwtop.guardian.objects.spec import KernelObjects
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Rule
from fwtop.xdp.rule import check_xdp

_ATTACH = "some drivers reset the interface for a moment when the first XDP program is attached"


def build(rule: Rule, exceptions: tuple[Prefix, ...]) -> KernelObjects:  # noqa: ARG001 - the allow-list comes first
    """Return the rule to be compiled; raises FwtopError (code 2) if it can't be."""
    check_xdp(rule)
    return KernelObjects((), (), (_ATTACH,) if rule.kind is Kind.XDP else (), compiled=rule)
