"""Whether drivers run XDP themselves, by the kernel's own word (generic netlink family "netdev", Linux 6.3).

Source: Documentation/netlink/specs/netdev.yaml.
"""

from __future__ import annotations

import struct

from fwtop.collect import netlink

_NETLINK_GENERIC = 16
_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_DEV_GET, _IFINDEX, _XDP_FEATURES = 1, 1, 3
_BASIC = 1  # NETDEV_XDP_ACT_BASIC: aborted, drop, pass and tx
_HEADER = 4  # struct genlmsghdr


def native_xdp() -> dict[int, bool] | None:
    """Return by interface number whether its driver runs XDP; None where the kernel doesn't tell."""
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
    bodies = netlink.dump(_NETLINK_GENERIC, family, request)
    return [dict(netlink.attributes(body, _HEADER)) for body in bodies]
