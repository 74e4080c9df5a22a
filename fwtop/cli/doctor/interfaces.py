"""Checks of network interfaces: driver, queues, rings, offloads, RSS, attached XDP programs."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fwtop.cli.doctor.checks import OK, UNKNOWN, WARNING, Check
from fwtop.kernel import netlink
from fwtop.kernel.programs import run
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.kernel.links import Link
    from fwtop.xdp.attach import Target

_SECONDS = 5  # for ethtool
_PORTS = "L4 bytes"  # ethtool's name for the ports among the hashed fields


def spread(group: str, name: str, ethtool: Callable[..., str]) -> Iterator[Check]:
    """Check the RSS indirection table and the fields hashed for UDP.

    Yields nothing for a single queue, or if the driver reports nothing.
    """
    table = ethtool("-x", name)
    rings = re.search(r"with (\d+) RX ring", table)
    if rings and int(rings[1]) == 1:
        return
    used = {
        int(ring)
        for row in re.findall(r"^\s*\d+:((?:\s+\d+)+)$", table, re.MULTILINE)
        for ring in row.split()
    }
    if rings and used:
        count = int(rings[1])
        if len(used) < count:
            detail = f"packets go to {len(used)} of {count} queues"
            yield Check(group, "RSS", WARNING, detail, f"ethtool -X {name} equal {count}")
        else:
            yield Check(group, "RSS", OK, f"packets go to all {count} queues")
    for kind, family in (("udp4", "IPv4"), ("udp6", "IPv6")):
        hashed = _udp_fields(ethtool, name, kind)
        if hashed and _PORTS not in hashed:
            detail = f"UDP over {family} is spread by address only: few sources fill few queues"
            yield Check(
                group, f"RSS of {kind}", WARNING, detail, f"ethtool -N {name} rx-flow-hash {kind} sdfn"
            )


def _udp_fields(ethtool: Callable[..., str], name: str, kind: str) -> str:
    return ethtool("-n", name, "rx-flow-hash", kind).partition("Hash flow key:")[2].strip()


def steering(group: str, name: str, ethtool: Callable[..., str]) -> Iterator[Check]:
    """Say whether the card takes rules on flows, by which it drops packets before any CPU sees them.

    Which ones, only trying tells: drivers differ. fwtop puts none in, as none would end by itself.
    """
    found = re.search(r"^ntuple-filters: (on|off)( \[fixed\])?", ethtool("-k", name), re.MULTILINE)
    rules = re.search(r"^Total (\d+) rules", ethtool("-n", name), re.MULTILINE)
    if rules and found and found[1] == "on":
        drops = f"ethtool -N {name} flow-type udp4 dst-port 9 action -1"
        detail = f"takes rules on flows, {rules[1]} in place: '{drops}' drops in the card, if it is taken"
        yield Check(group, "flow steering", OK, detail)
    elif found and found[1] == "off" and not found[2]:
        detail = f"off: with 'ethtool -K {name} ntuple on' the card may drop by rules on flows"
        yield Check(group, "flow steering", OK, detail)
    elif found:
        yield Check(
            group, "flow steering", OK, "the card takes no rules on flows: it can't drop packets itself"
        )


_RING = 2048  # descriptors: a millisecond of 2 Mpps


def checks(names: list[str]) -> Iterator[Check]:
    """Look at the named interfaces, or at those with a default route.

    Raises FwtopError (code 2) for one that is not there.
    """
    from pyroute2 import Ethtool

    from fwtop.kernel.links import choose_links, list_links

    links = list_links()
    try:
        chosen = choose_links(links, names)
    except FwtopError as error:
        if names:
            raise
        yield Check("interface", "default", WARNING, str(error), "fwtop doctor -i IF")
        return
    native = native_xdp()
    with Ethtool() as ethtool:
        for link in chosen:
            yield from _link(link, links, native, ethtool)
    yield from _bridges(links, chosen)


def _link(
    link: Link,
    links: list[Link],
    native: dict[int, bool] | None,
    ethtool: Any,  # noqa: ANN401
) -> Iterator[Check]:
    from fwtop.xdp.attach import foreign_program, targets

    group = f"interface {safe_text(link.name)}"
    if not link.up:
        yield Check(group, "state", WARNING, "down", f"ip link set {safe_text(link.name)} up")
    yield _driver(group, link.name, None if native is None else native.get(link.index))
    yield from _place(group, link.name, targets(links, [link]))
    yield from _queues(group, link.name, ethtool)
    yield from spread(group, safe_text(link.name), partial(_ask, "ethtool"))
    yield from steering(group, safe_text(link.name), partial(_ask, "ethtool"))
    yield from _offloads(group, link.name, ethtool)
    yield _attached(group, foreign_program(link.index))


def _bridges(links: Sequence[Link], chosen: Sequence[Link]) -> Iterator[Check]:
    """Report bridges whose traffic is not watched, and rules that don't match what they forward."""
    from fwtop.kernel.bridges import crossed, unwatched

    for bridge in unwatched(links, chosen):
        mend = f"fwtop -i {safe_text(bridge.ports[0].name)}"
        yield Check("interface", "bridge", WARNING, f"{bridge.words} passes packets on unwatched", mend)
    for bridge in crossed(links, chosen):
        hidden = " and ".join(f"IPv{family}" for family in sorted({4, 6} - bridge.netfilter))
        detail = f"{bridge.words}: netfilter sees what it passes on"
        if hidden:
            detail = (
                f"{bridge.words}: netfilter doesn't see its {hidden}: only --via xdp, tc, nftables act on it"
            )
        yield Check("interface", "bridge", OK, detail)


def _ask(*argv: str) -> str:
    """Return what a program prints, "" where it is missing, refuses or takes too long."""
    try:
        return run([*argv], timeout=_SECONDS)
    except FwtopError:
        return ""


def _driver(group: str, name: str, native: bool | None) -> Check:
    match = re.search(r"^driver: (\S+)", _ask("ethtool", "-i", name), re.MULTILINE)
    driver = safe_text(match[1], limit=40) if match else "driver unknown"
    if native is None:
        detail = f"{driver}; whether it supports native XDP is known only from Linux 6.3 on"
        return Check(group, "driver", UNKNOWN, detail)
    if native:
        return Check(group, "driver", OK, f"{driver}: supports native XDP")
    return Check(group, "driver", WARNING, f"{driver}: generic XDP only, which is slower")


def _place(group: str, name: str, places: Sequence[Target]) -> Iterator[Check]:
    """Report where XDP rules for a VLAN or bond are attached."""
    for place in places:
        below = [one.name for one in (place.link, *place.members) if one.name != name]
        if below:
            detail = f"on {safe_text(', '.join(below))}, which it stands on: it sees all that arrives there"
            yield Check(group, "XDP rules", OK, detail)


def _told(ask: Callable[[str], Any], name: str) -> Any:  # noqa: ANN401 - pyroute2 has no types
    """Return what the kernel tells about an interface, None if its driver doesn't."""
    from pyroute2.ethtool.ioctl import EthtoolError

    try:
        return ask(name)
    except (EthtoolError, OSError):
        return None


def _queues(group: str, name: str, ethtool: Any) -> Iterator[Check]:  # noqa: ANN401
    channels = _told(ethtool.get_channels, name)
    count = max(channels.combined_count, channels.rx_count) if channels else 0
    limit = max(channels.max_combined, channels.max_rx) if channels else 0
    if count and count < limit:
        mend = f"ethtool -L {safe_text(name)} combined {limit}"
        yield Check(group, "queues", WARNING, f"{count} of {limit}: not all CPUs share the load", mend)
    elif count:
        yield Check(group, "queues", OK, f"{count} of {limit}")
    rings = _told(ethtool.get_rings, name)
    size, largest = (rings.rx or 0, rings.rx_max or 0) if rings else (0, 0)
    wanted = min(largest, _RING)
    if size and size < wanted:
        mend = f"ethtool -G {safe_text(name)} rx {wanted}"
        detail = f"{size} of at most {largest}: bursts overrun it; changing it resets the interface"
        yield Check(group, "receive ring", WARNING, detail, mend)
    elif size:
        yield Check(group, "receive ring", OK, f"{size} of at most {largest}")


def _offloads(group: str, name: str, ethtool: Any) -> Iterator[Check]:  # noqa: ANN401
    features = _told(ethtool.get_offload_flags, name)
    if not features:
        return
    wanted = ("generic-receive-offload", "large-receive-offload", "rx-vlan-offload")
    shown = ", ".join(f"{feature} {'on' if features[feature] else 'off'}" for feature in wanted)
    if features["large-receive-offload"]:
        mend = f"ethtool -K {safe_text(name)} lro off"
        yield Check(group, "offloads", WARNING, f"{shown}: XDP can't be attached with LRO on", mend)
    else:
        yield Check(group, "offloads", OK, shown)


def _attached(group: str, described: str) -> Check:
    if not described:
        return Check(group, "XDP program", OK, "none attached")
    detail = f"{described} is attached; fwtop never replaces foreign programs"
    return Check(group, "XDP program", OK if "fwtop" in described else WARNING, detail)


_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_DEV_GET, _IFINDEX, _XDP_FEATURES = 1, 1, 3
_BASIC = 1  # NETDEV_XDP_ACT_BASIC: aborted, drop, pass and tx
_HEADER = 4  # struct genlmsghdr


def native_xdp() -> dict[int, bool] | None:
    """Return by ifindex whether the driver supports native XDP; None if the kernel does not report it."""
    try:
        family = _family(b"netdev")
        if family is None:
            return None
        return {
            struct.unpack("=I", found[_IFINDEX])[0]: bool(
                struct.unpack("=Q", found[_XDP_FEATURES])[0] & _BASIC
            )
            for found in _dump(family, _DEV_GET)
            if len(found.get(_IFINDEX, b"")) == 4 and len(found.get(_XDP_FEATURES, b"")) == 8
        }
    except OSError:
        return None


def _family(name: bytes) -> int | None:
    for found in _dump(_CONTROLLER, _GET_FAMILY):
        if found.get(_FAMILY_NAME, b"").rstrip(b"\0") == name:
            return int(struct.unpack("=H", found[_FAMILY_ID][:2])[0])
    return None


def _dump(family: int, command: int) -> list[dict[int, bytes]]:
    request = struct.pack("=BBH", command, 1, 0)
    bodies = netlink.dump(netlink.NETLINK_GENERIC, family, request)
    return [dict(netlink.attributes(body, _HEADER)) for body in bodies]
