"""tc ingress as it was before TCX (Linux 6.6): filters under the clsact qdisc, of observers and of rules.

Such a filter survives every process, so it has a handle of its own by which it is found and taken away
again. Compiled rules stand behind the observers, which count what is dropped there. A qdisc that was there
before is left; one that we made goes when nothing else hangs on it, and that it was ours is noted in
/run/fwtop, because a qdisc can't carry a name. Sources: tc-bpf(8),
include/uapi/linux/{rtnetlink,pkt_cls,pkt_sched}.h.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

from fwtop.collect import netlink
from fwtop.collect.links import list_links
from fwtop.model.protocol import SOCKET_DIRECTORY

_NEWQDISC, _DELQDISC = 36, 37
_NEWFILTER, _DELFILTER, _GETFILTER = 44, 45, 46
_KIND, _OPTIONS = 1, 2  # TCA_*
_BPF_FD, _BPF_NAME, _BPF_FLAGS = 6, 7, 8  # TCA_BPF_*
_DIRECT_ACTION = 1
_CLSACT, _INGRESS = 0xFFFFFFF1, 0xFFFFFFF2
_CLSACT_HANDLE = 0xFFFF0000
_ETH_P_ALL = 3
_FIRST, _SECOND = 1, 2  # priorities, first in the line: a filter that accepts ends the line
_HANDLE = 0xF7090  # the observers' filters have this and the slot
_SLOTS = 16
_RULES = {"tc": 0xF70A0, "ingress": 0xF70A1}  # those of compiled rules, by mode of attachment


def attach(program: int, ifindex: int, slot: int) -> None:
    """Put a program at tc ingress, over one that a dead fwtop left there; raises OSError."""
    _remove_filter(ifindex, _HANDLE + slot, _FIRST)
    _make_qdisc(ifindex)
    _put_filter(ifindex, _HANDLE + slot, _FIRST, program, netlink.NLM_F_EXCL)


def put_rules(program: int, ifindex: int, mode: str) -> None:
    """Put compiled rules behind the observers, in one step with taking away older ones; raises OSError."""
    _make_qdisc(ifindex)
    _put_filter(ifindex, _RULES[mode], _SECOND, program)


def remove_rules(ifindex: int, mode: str) -> None:
    """Take the rules off one interface, and the qdisc if it was made for them; raises OSError."""
    _remove_filter(ifindex, _RULES[mode], _SECOND)
    _remove_own_qdisc(ifindex)


def detach(slot: int | None) -> None:
    """Take our filters of one slot (None: of all) off every interface, and our qdiscs with them."""
    slots = range(_SLOTS) if slot is None else (slot,)
    for link in list_links():
        present = _filters(link.index)
        for number in slots:
            if _HANDLE + number in present:
                _remove_filter(link.index, _HANDLE + number, _FIRST)
        _remove_own_qdisc(link.index)


def _make_qdisc(ifindex: int) -> None:
    if _add_qdisc(ifindex):
        _note(ifindex).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _note(ifindex).touch(mode=0o600)


def _remove_own_qdisc(ifindex: int) -> None:
    """Remove the qdisc if we made it and nothing hangs on it any more."""
    if _note(ifindex).exists() and not _filters(ifindex):
        _delete_qdisc(ifindex)
        _note(ifindex).unlink(missing_ok=True)


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


def _filters(ifindex: int) -> set[int]:
    """Return the handles of all filters at this interface's ingress and egress, foreign ones too."""
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


def _note(ifindex: int) -> Path:
    return Path(SOCKET_DIRECTORY) / f"clsact-{os.stat('/proc/self/ns/net').st_ino}-{ifindex}"
