"""tc ingress before TCX (Linux 6.6): filters of observers and compiled rules under the clsact qdisc.

A filter outlives every process, so each has a handle reserved for fwtop, by which it is found and removed.
Observers come before compiled rules, whose drops they count. A qdisc that fwtop created, recorded in
/run/fwtop as a qdisc has no name, is removed with its last filter; others are left alone. Sources: tc-bpf(8),
include/uapi/linux/{rtnetlink,pkt_cls,pkt_sched}.h.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from pathlib import Path

from fwtop.kernel import netlink
from fwtop.kernel.links import list_links
from fwtop.kernel.namespaces import cookie
from fwtop.model.paths import RUN_DIRECTORY

_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_NEWFILTER, _DELFILTER, _GETFILTER = 44, 45, 46
_KIND, _OPTIONS = 1, 2  # TCA_*
_BPF_FD, _BPF_NAME, _BPF_FLAGS = 6, 7, 8  # TCA_BPF_*
_DIRECT_ACTION = 1
_CLSACT, _INGRESS = 0xFFFFFFF1, 0xFFFFFFF2
_CLSACT_HANDLE = 0xFFFF0000
_ETH_P_ALL = 3
_FIRST, _SECOND = 1, 2  # priorities: the lowest runs first, and one that accepts ends the chain
_HANDLE = 0xF7090  # of observers: this plus the slot
_SLOTS = 16
_RULES = {"tc": 0xF70A0, "ingress": 0xF70A1}  # handles of compiled rules by attach mode


def attach(program: int, ifindex: int, slot: int) -> None:
    """Attach an observer at tc ingress, replacing what a dead fwtop left there; raises OSError."""
    _remove_filter(ifindex, _HANDLE + slot, _FIRST)
    make_qdisc(ifindex)
    _put_filter(ifindex, _HANDLE + slot, _FIRST, program, netlink.NLM_F_EXCL)


def attach_rules(program: int, ifindex: int, mode: str) -> None:
    """Attach compiled rules behind the observers, atomically replacing older ones; raises OSError."""
    make_qdisc(ifindex)
    _put_filter(ifindex, _RULES[mode], _SECOND, program)


def detach_rules(ifindex: int, mode: str) -> None:
    """Detach the rules from one interface, and remove the qdisc if it is ours; raises OSError."""
    _remove_filter(ifindex, _RULES[mode], _SECOND)
    remove_own_qdisc(ifindex)


def has_rules(ifindex: int, mode: str) -> bool:
    """Return whether the filter of compiled rules is still attached."""
    return _RULES[mode] in _filters(ifindex)


def is_left() -> bool:
    """Whether an observer, or a qdisc that fwtop created, is on any interface; raises OSError.

    Only interfaces with a qdisc for arrivals are asked for their filters: there may be thousands of others.
    """
    ours = set(range(_HANDLE, _HANDLE + _SLOTS))
    return any(RUN_DIRECTORY.glob(f"{_markers()}*")) or any(
        not ours.isdisjoint(_filters(ifindex)) for ifindex in _interfaces()
    )


def detach(slot: int | None) -> None:
    """Remove the observers of one slot (None: of all) and our qdiscs from every interface."""
    slots = range(_SLOTS) if slot is None else (slot,)
    for link in list_links():
        present = _filters(link.index)
        for number in slots:
            if _HANDLE + number in present:
                _remove_filter(link.index, _HANDLE + number, _FIRST)
        remove_own_qdisc(link.index)


def make_qdisc(ifindex: int) -> None:
    """Make the qdisc where there is none, and record that; raises OSError."""
    if _add_qdisc(ifindex):
        _created_marker(ifindex).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _created_marker(ifindex).touch(mode=0o600)


def remove_own_qdisc(ifindex: int) -> None:
    """Remove the qdisc if fwtop created it and it has no filter left."""
    if _created_marker(ifindex).exists() and not _filters(ifindex):
        _delete_qdisc(ifindex)
        _created_marker(ifindex).unlink(missing_ok=True)


def _put_filter(ifindex: int, handle: int, priority: int, program: int, flags: int = 0) -> None:
    options = netlink.nested(
        _OPTIONS,
        netlink.attribute(_BPF_FD, struct.pack("<I", program)),
        netlink.attribute(_BPF_NAME, b"fwtop\0"),
        netlink.attribute(_BPF_FLAGS, struct.pack("<I", _DIRECT_ACTION)),
    )
    body = _tcmsg(ifindex, handle, _INGRESS, _info(priority)) + netlink.attribute(_KIND, b"bpf\0") + options
    netlink.request(socket.NETLINK_ROUTE, _NEWFILTER, body, netlink.NLM_F_CREATE | flags)


def _add_qdisc(ifindex: int) -> bool:
    body = _tcmsg(ifindex, _CLSACT_HANDLE, _CLSACT, 0) + netlink.attribute(_KIND, b"clsact\0")
    try:
        netlink.request(socket.NETLINK_ROUTE, _NEWQDISC, body, netlink.NLM_F_CREATE | netlink.NLM_F_EXCL)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return False
    return True


def _delete_qdisc(ifindex: int) -> None:
    body = _tcmsg(ifindex, _CLSACT_HANDLE, _CLSACT, 0) + netlink.attribute(_KIND, b"clsact\0")
    with contextlib.suppress(FileNotFoundError):
        netlink.request(socket.NETLINK_ROUTE, _DELQDISC, body)


def _remove_filter(ifindex: int, handle: int, priority: int) -> None:
    if handle not in _filters(ifindex):
        return
    body = _tcmsg(ifindex, handle, _INGRESS, _info(priority)) + netlink.attribute(_KIND, b"bpf\0")
    with contextlib.suppress(FileNotFoundError):
        netlink.request(socket.NETLINK_ROUTE, _DELFILTER, body)


def _interfaces() -> list[int]:
    """Return the interfaces that have a clsact or ingress qdisc, whoever made it; raises OSError."""
    found = (
        struct.unpack_from("<BBHiIII", body)
        for body in netlink.dump(socket.NETLINK_ROUTE, _GETQDISC, _tcmsg(0, 0, 0, 0))
    )
    return [ifindex for _, _, _, ifindex, _, parent, _ in found if parent == _CLSACT]


def _filters(ifindex: int) -> set[int]:
    """Return the handles of all filters at an interface's ingress and egress, whoever made them."""
    handles: set[int] = set()
    for parent in (_INGRESS, _INGRESS + 1):
        with contextlib.suppress(OSError):  # no qdisc
            for body in netlink.dump(socket.NETLINK_ROUTE, _GETFILTER, _tcmsg(ifindex, 0, parent, 0)):
                handle = int(struct.unpack_from("<BBHiIII", body)[4])
                if handle:
                    handles.add(handle)
    return handles


def _tcmsg(ifindex: int, handle: int, parent: int, info: int) -> bytes:
    return struct.pack("<BBHiIII", 0, 0, 0, ifindex, handle, parent, info)


def _info(priority: int) -> int:
    return priority << 16 | socket.htons(_ETH_P_ALL)


def _created_marker(ifindex: int) -> Path:
    return RUN_DIRECTORY / f"{_markers()}{ifindex}"


def _markers() -> str:
    return f"clsact-{cookie()}-"  # inodes of namespaces are used again
