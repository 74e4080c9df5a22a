"""What guardian, loader and console tell one another of observers, and the layouts of what these write.

Root's side stays small: numpy and bcc are not imported here. The layouts are those of bpf/counters.h and
bpf/record.h, as numpy dtypes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.kernel import bpf
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.traffic.counters import TRAFFIC_CLASSES
from fwtop.model.wire import of_json, of_plain, plain, to_json

if TYPE_CHECKING:
    import numpy as np


# Prefixes of descriptor names
HELD = "held:"  # keep something attached, or only root may write: these stay with the guardian
SHARED_MAPS = "shared:"  # all maps of the compiled rules: these stay with the guardian, too
XDP_COUNTERS = "xdp:"  # those of them that a console may read
SCOPE = "held:scope"  # the map of what a console sees
LOCATIONS = "held:locations"  # the map of kernel addresses where packets were dropped


class AttachRequest(Struct, frozen=True):
    """Attach observers to interfaces (none: those with a default route). Descriptors stay the sender's."""

    interfaces: tuple[str, ...]
    slot: int
    xdp_maps: dict[str, int] = field(default_factory=dict)  # shared maps of compiled rules, by name


def encode_request(request: AttachRequest) -> tuple[bytes, list[int]]:
    """Return a request as one message and the descriptors that go with it."""
    return to_json(request), list(request.xdp_maps.values())


def decode_request(message: bytes, descriptors: Sequence[int]) -> AttachRequest:
    """Read what `encode_request` wrote; raises ProtocolError."""
    try:
        request = of_json(AttachRequest, message)
        return replace(request, xdp_maps=dict(zip(request.xdp_maps, descriptors, strict=True)))
    except ValueError as error:
        raise ProtocolError(f"not a request to the loader of observers: {error}") from None


class AttachPoint(Struct, frozen=True):
    """Where a program is attached."""

    kind: str  # "tracepoint", "netfilter", "tcx", "egress" (tcx, too)
    ifindex: int = 0
    family: int = 0
    hook: int = 0
    priority: int = 0

    def attach(self, program: int) -> int:
        """Attach a program and return the link, which detaches when closed. Raises OSError."""
        if self.kind == "tracepoint":
            return bpf.attach_tracepoint(program)
        if self.kind == "netfilter":
            return bpf.attach_netfilter(program, family=self.family, hook=self.hook, priority=self.priority)
        if self.kind == "egress":
            return bpf.attach_tcx_egress(program, self.ifindex)
        return bpf.attach_tcx_ingress(program, self.ifindex)


class Attachment(Struct, frozen=True):
    """A program and its link, by the names of their descriptors."""

    program: str
    link: str
    point: AttachPoint


class Interface(Struct, frozen=True):
    """An interface that was chosen to be watched."""

    name: str
    index: int
    ethernet: bool


class Observation(Struct, frozen=True):
    """What the loader attached, as it tells the guardian and the guardian the console.

    Its descriptors travel beside it, named in `fds` of the same answer.
    """

    interfaces: tuple[Interface, ...]
    max_watched: int  # interface numbers that fit into the scope map
    watched: tuple[int, ...]  # numbers of the chosen interfaces and of those on top of them
    own_addresses: tuple[str, ...]
    beside_netfilter: tuple[
        int, ...
    ]  # families that a bridge of these interfaces passes on without netfilter
    warnings: tuple[str, ...]
    reasons: dict[int, str]  # drop reasons by number
    reason_slots: int
    counts_connections: bool  # new connections are counted by the netfilter program
    cpus: int
    ring_bytes: int
    ingress: str  # "tcx", "clsact"
    accepted: str  # "netfilter", "nflog"
    attachments: tuple[Attachment, ...]  # in the order to attach them again; none without links
    log_one_in: int


def encode_reply(observation: Observation, descriptors: dict[str, int]) -> tuple[Answer, list[int]]:
    """Return an observation and its descriptors as an answer."""
    data = {**plain(observation), "fds": list(descriptors)}
    return Answer(True, data=data), list(descriptors.values())


def decode_reply(answer: Answer, descriptors: Sequence[int]) -> tuple[Observation, dict[str, int]]:
    """Read what `encode_reply` wrote; raises ProtocolError."""
    names = [str(name) for name in answer.data.get("fds", ())]
    if len(names) != len(descriptors):
        raise ProtocolError("descriptors are missing")
    return decode_observation(answer.data), dict(zip(names, descriptors, strict=True))


def decode_observation(data: dict[str, Any]) -> Observation:
    """Read the observation in an answer's data, other keys ignored; raises ProtocolError."""
    try:
        return of_plain(Observation, data)
    except ValueError as error:
        raise ProtocolError(f"not an observation: {error}") from None


HOOKS = 5
CONTROL_WORDS = HOOKS + 2  # struct fwtop_control: one_in, enabled, counting
SCOPE_WORDS = 2  # struct fwtop_scope: netns, bridged; watched and the role of each follow
PLAIN, PORT, BRIDGE = range(3)  # enum fwtop_role
NO_INTERFACE = 0xFFFFFFFF  # pads `watched`
LOCATION_PLACES = 24  # the last one takes what found no place in struct fwtop_locations
DATA_BYTES = 216
RECORD_BYTES = 248  # 256 in the ring, with its own header of 8
_ALIGNMENT = 64


def scope_bytes(watched: int) -> int:
    """Return sizeof(struct fwtop_scope) for this number of interfaces."""
    return 4 * (SCOPE_WORDS + 2 * watched)


def counters_bytes(reasons: int) -> int:
    """Return sizeof(struct fwtop_counters)."""
    used = (len(TRAFFIC_CLASSES) + 2) * 16 + 7 * 8 + 2 * HOOKS * 4 + 2 * reasons * 16 + LOCATION_PLACES * 8
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def counters_dtype(reasons: int) -> np.dtype[Any]:
    """Return the dtype of struct fwtop_counters for this number of drop reasons."""
    import numpy as np

    count = [("packets", "<u8"), ("bytes", "<u8")]
    used = np.dtype(
        [
            ("arrived", count, (len(TRAFFIC_CLASSES),)),
            ("accepted", count, (2,)),
            ("reassembled", "<u8"),
            ("dropped_fragments", "<u8"),
            ("fragments6", "<u8"),
            ("reassembled6", "<u8"),
            ("filtered", "<u8"),
            ("new_connections", "<u8"),
            ("lost", "<u8"),
            ("left", "<u4", (HOOKS,)),
            ("drawn", "<u4", (HOOKS,)),
            ("drops", count, (2, reasons)),
            ("locations", "<u8", (LOCATION_PLACES,)),
        ]
    )
    padding = counters_bytes(reasons) - used.itemsize
    return np.dtype([*((name, used[name]) for name in used.names or ()), ("padding", "V", padding)])


def read_locations(descriptor: int) -> list[int]:
    """Read the kernel addresses in struct fwtop_locations, 0 for an empty place; raises OSError."""
    with mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
        return list(struct.unpack_from(f"<{LOCATION_PLACES - 1}Q", memory))


def record_dtype() -> np.dtype[Any]:
    """Return the dtype of struct fwtop_record."""
    import numpy as np

    return np.dtype(
        [
            ("time_ns", "<u8"),
            ("one_in", "<u4"),
            ("length", "<u4"),
            ("ifindex", "<u4"),
            ("segments", "<u2"),
            ("reason", "<u2"),
            ("rule", "<u4"),
            ("hook", "u1"),
            ("captured", "u1"),
            ("link", "u1"),
            ("reserved", "u1"),
            ("data", "u1", (DATA_BYTES,)),
        ]
    )
