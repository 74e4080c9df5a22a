"""One module a kind of rule: each turns a Rule into Artifacts."""

from __future__ import annotations

from fwtop.mitigate.artifacts import Artifacts
from fwtop.mitigate.drivers import hashlimit, ipset, nftables, notrack, string, synproxy, sysctl, xdp
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule

_BUILDERS = {
    Kind.IPSET: ipset.build,
    Kind.HASHLIMIT: hashlimit.build,
    Kind.STRING: string.build,
    Kind.NOTRACK: notrack.build,
    Kind.XDP: xdp.build,
    Kind.TC: xdp.build,
    Kind.SYSCTL: sysctl.build,
    Kind.NFTABLES: nftables.build,
    Kind.SYNPROXY: synproxy.build,
}


def build(rule: Rule, exceptions: tuple[Prefix, ...] = ()) -> Artifacts:
    """Return what a rule is in the kernel; raises FwtopError (code 3) for a kind without a driver."""
    builder = _BUILDERS.get(rule.kind)
    if builder is None:
        raise FwtopError(f"this guardian has no driver for {rule.kind.value}; nothing was installed", 3)
    return builder(rule, exceptions)
