"""One module a kind of rule: each turns a Rule into KernelObjects."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.guardian.backends import (
    combined,
    compiled,
    connlimit,
    hashlimit,
    ipset,
    nftables,
    notrack,
    string,
    synproxy,
    sysctl,
)
from fwtop.guardian.backends.common import unlisted_first
from fwtop.guardian.objects.spec import KernelObjects
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule

_BUILDERS = {
    Kind.IPSET: ipset.build,
    Kind.HASHLIMIT: hashlimit.build,
    Kind.STRING: string.build,
    Kind.NOTRACK: notrack.build,
    Kind.XDP: compiled.build,
    Kind.TC: compiled.build,
    Kind.SYSCTL: sysctl.build,
    Kind.NFTABLES: nftables.build,
    Kind.SYNPROXY: synproxy.build,
    Kind.CONNLIMIT: connlimit.build,
}


def build(rule: Rule, exceptions: tuple[Prefix, ...] = (), known: Iterable[Prefix] = ()) -> KernelObjects:
    """Return what a rule is in the kernel, given the prefixes of the allow-list.

    Raises FwtopError (code 3) for a kind without a backend.
    """
    if rule.kind is Kind.HARDEN:
        parts = [build(part, exceptions, known) for part in combined.parts_of(rule)]
        return combined.together(rule.id, parts)
    builder = _BUILDERS.get(rule.kind)
    if builder is None:
        raise FwtopError(f"this guardian has no backend for {rule.kind.value}; nothing was installed", 3)
    return unlisted_first(builder(rule, exceptions), rule, known)
