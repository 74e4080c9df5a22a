"""Create the maps of an observation, load its programs and attach them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from fwtop.compile.compiler import Kernel, byte_code, relocate
from fwtop.kernel import bpf, clsact
from fwtop.kernel.bridges import beside_netfilter, crossed, unwatched
from fwtop.kernel.links import (
    Link,
    choose_links,
    list_addresses,
    list_links,
    lowest_links,
    watched_indexes,
)
from fwtop.model.text import safe_text
from fwtop.observe import messages, older_kernels, scope
from fwtop.observe.messages import (
    CONTROL_WORDS,
    DATA_BYTES,
    HELD,
    LOCATIONS,
    NO_INTERFACE,
    SCOPE,
    SHARED_MAPS,
    XDP_COUNTERS,
    Attachment,
    AttachPoint,
    Interface,
    Observation,
    counters_bytes,
)
from fwtop.xdp import maps as xdp_maps
from fwtop.xdp.maps import possible_cpus

RING_BYTES = 1 << 22  # 16,384 records: about half of them pending at the console's next poll
LOG_ONE_IN = 64  # fixed, as only root can change the rule: at 1 Mpps 16,000 messages a second
_MAP_NUMBERS = {"ring": 1, "counters": 2, "control": 3, "scope": 4, "locations": 5}
_INPUT, _FORWARD = 1, 2  # NF_INET_LOCAL_IN, NF_INET_FORWARD
_IPV4, _IPV6 = 2, 10  # NFPROTO_*
_LAST = (1 << 31) - 2  # the last priority that bpf links may have: after all rules
_SPARE_INTERFACES = 3
_PROGRAMS = ["fwtop_ingress", "fwtop_ingress_ip", "fwtop_bridged", "fwtop_drop", "fwtop_accepted"]
_MAX_PORTS = 64  # of bridges: each is a descriptor that travels to the console
# For tests: kernel features to pretend are missing, separated by commas
_WITHOUT = "FWTOP_WITHOUT"


class Observers:
    """One console's maps, programs and links; `close` detaches and closes them."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._open: list[tuple[str, int]] = []
        self._without = frozenset(os.environ.get(_WITHOUT, "").split(","))
        self._ingress, self._accepted = "tcx", "netfilter"
        self._attachments: list[Attachment] = []
        self._notes: list[str] = []

    @property
    def descriptors(self) -> dict[str, int]:
        """Everything that holds the observation, by name."""
        return dict(self._open)

    def close(self) -> None:
        """Close all descriptors, which detaches, and remove what that leaves behind."""
        while self._open:
            os.close(self._open.pop()[1])
        if self._ingress == "clsact":
            clsact.detach(self._slot)
        if self._accepted == "nflog":
            older_kernels.detach(self._slot)

    def attach(self, names: Sequence[str], xdp_maps: dict[str, int] | None = None) -> Observation:
        """Attach to the named interfaces, by default those with a default route.

        `xdp_maps` are the shared maps of compiled rules, if they exist: what XDP drops is sampled, too.
        Raises FwtopError or OSError; the caller closes.
        """
        links = list_links()
        chosen = choose_links(links, list(names))
        watched = watched_indexes(links, chosen)
        # Leave room for VLANs and bonds made later; round up, so that the cache of compiled code is hit
        max_watched = -(-(len(watched) + _SPARE_INTERFACES) // 4) * 4
        padded = watched + [NO_INTERFACE] * (max_watched - len(watched))
        kernel = Kernel.read()
        cpus = possible_cpus()
        self._share_xdp_maps(xdp_maps or {})
        maps = self._create_maps(cpus * counters_bytes(kernel.reason_slots), padded, links)
        definitions = {
            **kernel.definitions,
            **{f"FWTOP_{name.upper()}_FD": number for name, number in _MAP_NUMBERS.items()},
            "FWTOP_CPUS": cpus,
            "FWTOP_REASONS": kernel.reason_slots,
            "FWTOP_RING_BYTES": RING_BYTES,
            "FWTOP_WATCHED": max_watched,
        }
        code = byte_code(["ingress.c", "drops.c", "accepted.c"], definitions, _PROGRAMS)
        code = {name: relocate(data, maps) for name, data in code.items()}
        drops = bpf.load_program(bpf.TRACEPOINT, "fwtop_drop", code["fwtop_drop"], kernel.tracepoint)
        self._attach_program(drops, [AttachPoint("tracepoint")])
        self._attach_accepted(code["fwtop_accepted"], watched)
        ports = self._attach_bridged(code["fwtop_bridged"], links, chosen)
        scope.write(maps[_MAP_NUMBERS["scope"]], padded, links, bridged=ports > 0)
        self._notes += [
            f"bridge {bridge.words} passes packets on that are not watched here: fwtop -i "
            f"{safe_text(bridge.ports[0].name)} watches what arrives there"
            for bridge in unwatched(links, chosen)
        ]
        self._attach_ingress(code, lowest_links(links, chosen))
        by_links = (self._ingress, self._accepted) == ("tcx", "netfilter")
        return Observation(
            interfaces=tuple(Interface(link.name, link.index, link.ethernet) for link in chosen),
            max_watched=max_watched,
            watched=tuple(watched),
            own_addresses=tuple(list_addresses()),
            beside_netfilter=tuple(beside_netfilter(links, chosen)),
            warnings=self._warnings(kernel),
            reasons=dict(kernel.reasons),
            reason_slots=kernel.reason_slots,
            counts_connections=kernel.counts_connections and self._accepted == "netfilter",
            cpus=cpus,
            ring_bytes=RING_BYTES,
            ingress=self._ingress,
            accepted=self._accepted,
            attachments=tuple(self._attachments) if by_links else (),  # arrivals are counted last
            log_one_in=LOG_ONE_IN,
        )

    def _warnings(self, kernel: Kernel) -> tuple[str, ...]:
        if kernel.reasons:
            return tuple(self._notes)
        told = "this kernel (before 5.17) reports no drop reasons: drops are shown by kernel function"
        return (told, *self._notes)

    def _keep(self, name: str, descriptor: int) -> int:
        self._open.append((name, descriptor))
        return descriptor

    def _create_maps(self, counters: int, watched: list[int], links: list[Link]) -> dict[int, int]:
        """Create the maps; returns their descriptors by the numbers used in the byte code."""
        ring = bpf.create_map(bpf.MAP_RINGBUF, "fwtop_ring", entries=RING_BYTES)
        descriptors = {_MAP_NUMBERS["ring"]: self._keep("ring", ring)}
        rings = dict(self._open).get(SHARED_MAPS + "rings")
        if rings is not None:
            xdp_maps.put_ring({"rings": rings}, self._slot, ring)
        sizes = {
            "counters": counters,
            "control": 4 * CONTROL_WORDS,
            "scope": messages.scope_bytes(len(watched)),
            "locations": 8 * (messages.LOCATION_PLACES - 1),
        }
        for name, size in sizes.items():
            descriptor = bpf.create_map(
                bpf.MAP_ARRAY, f"fwtop_{name}", entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
            )
            kept = {"scope": SCOPE, "locations": LOCATIONS}.get(name, name)
            descriptors[_MAP_NUMBERS[name]] = self._keep(kept, descriptor)
        scope.write(descriptors[_MAP_NUMBERS["scope"]], watched, links)
        return descriptors

    def _share_xdp_maps(self, given: dict[str, int]) -> None:
        """Let compiled XDP rules, present and future, sample dropped packets into the ring.

        A kernel that can't create the maps is watched without them.
        """
        with contextlib.suppress(OSError):
            shared = given or xdp_maps.create_shared()
            for name, descriptor in shared.items():
                self._keep(SHARED_MAPS + name, descriptor)
            for name, descriptor in xdp_maps.console_descriptors(shared).items():
                self._keep(XDP_COUNTERS + name, descriptor)

    def _attach_accepted(self, code: bytes, watched: list[int]) -> None:
        try:
            if "netfilter" in self._without:
                raise OSError(errno.EINVAL, "disabled for a test")
            program = bpf.load_program(bpf.NETFILTER, "fwtop_accepted", code)
        except OSError as error:
            if error.errno != errno.EINVAL:  # no such program type before Linux 6.4
                raise
            self._log_accepted(watched)
            return
        hooks = [(family, hook) for family in (_IPV4, _IPV6) for hook in (_INPUT, _FORWARD)]
        points = [
            AttachPoint("netfilter", family=family, hook=hook, priority=_LAST) for family, hook in hooks
        ]
        self._attach_program(program, points)

    def _log_accepted(self, watched: list[int]) -> None:
        self._accepted = "nflog"
        self._keep("nflog", older_kernels.bind(older_kernels.FIRST_GROUP + self._slot))
        owner = older_kernels.add_table(watched, slot=self._slot, one_in=LOG_ONE_IN, bytes_each=DATA_BYTES)
        if owner is not None:
            self._keep(HELD + "table", owner)

    def _attach_bridged(self, code: bytes, links: list[Link], chosen: list[Link]) -> int:
        """Count at the ports of the chosen ports' bridges what these send; returns how many there are."""
        indexes = {link.index for link in chosen}
        bridges = [one for one in crossed(links, chosen) if any(port.index in indexes for port in one.ports)]
        ports = [port for bridge in bridges for port in bridge.ports]
        if not ports or self._accepted != "netfilter" or "tcx" in self._without:
            return 0
        if len(ports) > _MAX_PORTS:
            self._notes.append(f"{len(ports)} ports of bridges: what they pass on is not counted as accepted")
            return 0
        program = bpf.load_program(bpf.TC, "fwtop_bridged", code)
        try:
            self._attach_program(program, [AttachPoint("egress", ifindex=port.index) for port in ports])
        except OSError as error:
            os.close(program)
            if error.errno != errno.EINVAL:  # no TCX before Linux 6.6
                raise
            return 0
        return len(ports)

    def _attach_ingress(self, code: dict[str, bytes], chosen: list[Link]) -> None:
        for link in chosen:
            name = "fwtop_ingress" if link.ethernet else "fwtop_ingress_ip"
            program = bpf.load_program(bpf.TC, name, code[name])
            try:
                if "tcx" in self._without:
                    raise OSError(errno.EINVAL, "disabled for a test")
                self._attach_program(program, [AttachPoint("tcx", ifindex=link.index)])
            except OSError as error:
                if error.errno != errno.EINVAL:  # no TCX before Linux 6.6
                    os.close(program)
                    raise
                self._ingress = "clsact"
                clsact.attach(program, link.index, self._slot)
                os.close(program)

    def _attach_program(self, program: int, points: list[AttachPoint]) -> None:
        """Attach at each point; the console may close these links and attach the program again."""
        links = [point.attach(program) for point in points]
        number = len(self._attachments)
        name = f"program:{number}"
        self._keep(name, program)
        for at, (point, link) in enumerate(zip(points, links, strict=True)):
            self._keep(f"link:{number}:{at}", link)
            self._attachments.append(Attachment(name, f"link:{number}:{at}", point))
