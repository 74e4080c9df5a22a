"""Create the maps, load the programs and attach them: what the loader's child does between its messages."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fwtop.collect import bpf, clsact, nftables, xdp_maps
from fwtop.collect.cell import CONTROL_WORDS, DATA_BYTES, NO_INTERFACE, cell_bytes
from fwtop.collect.compiler import byte_code, relocate
from fwtop.collect.kernel import Kernel
from fwtop.collect.links import Link, choose_links, list_addresses, list_links, lowest_links, watched_indexes
from fwtop.collect.shutter import Place
from fwtop.model.text import safe_text

RING_BYTES = 1 << 22  # 16,384 records: at 20,000 samples a second and 4 reads a second, a third of it
LOG_ONE_IN = 64  # fixed, as only root can change a rule: 16,000 messages a second at a million packets
_MAP_NUMBERS = {"ring": 1, "cells": 2, "control": 3}
_INPUT, _FORWARD = 1, 2  # NF_INET_LOCAL_IN, NF_INET_FORWARD
_IPV4, _IPV6 = 2, 10  # NFPROTO_*
_LAST = (1 << 31) - 2  # the greatest priority that bpf links may have: after every rule
_SPARE_PLACES = 3
_PROGRAMS = ["fwtop_ingress", "fwtop_ingress_ip", "fwtop_drop", "fwtop_accepted"]
# For tests: a list of what to do without, though this kernel has it.
_WITHOUT = "FWTOP_WITHOUT"


class Observers:
    """Everything that one console's observation holds open; `close` takes all of it away again."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._open: list[tuple[str, int]] = []
        self._without = frozenset(os.environ.get(_WITHOUT, "").split(","))
        self._ingress, self._accepted = "tcx", "netfilter"
        self._attachments: list[dict[str, Any]] = []

    @property
    def descriptors(self) -> list[int]:
        """The descriptors, in the order of data["fds"]."""
        return [descriptor for _, descriptor in self._open]

    def close(self) -> None:
        """Close every descriptor, which detaches, and take away what that leaves."""
        while self._open:
            os.close(self._open.pop()[1])
        if self._ingress == "clsact":
            clsact.detach(self._slot)
        if self._accepted == "nflog":
            nftables.detach(self._slot)

    def attach(self, names: list[str], fast: dict[str, int] | None = None) -> dict[str, Any]:
        """Attach to the named interfaces (none: by default route) and return the answer's data.

        `fast` are the maps of compiled XDP rules, if there are any: what these drop is sampled, too.
        Raises FwtopError or OSError; the caller closes.
        """
        links = list_links()
        chosen = choose_links(links, names)
        watched = watched_indexes(links, chosen)
        # Some may come to stand on them later. Few different numbers, so that compiled code is found again.
        places = -(-(len(watched) + _SPARE_PLACES) // 4) * 4
        watched_places = watched + [NO_INTERFACE] * (places - len(watched))
        kernel = Kernel.read()
        cpus = _possible_cpus()
        layout = self._share_fast(fast or {})
        maps = self._create_maps(cpus * cell_bytes(kernel.reason_slots), watched_places)
        definitions = {
            **kernel.definitions,
            **{f"FWTOP_{name.upper()}_FD": number for name, number in _MAP_NUMBERS.items()},
            "FWTOP_CPUS": cpus,
            "FWTOP_REASONS": kernel.reason_slots,
            "FWTOP_RING_BYTES": RING_BYTES,
            "FWTOP_WATCHED": places,
        }
        code = byte_code(["ingress.c", "drops.c", "accepted.c"], definitions, _PROGRAMS)
        code = {name: relocate(data, maps) for name, data in code.items()}
        self._attach_drops(code["fwtop_drop"], kernel.tracepoint)
        self._attach_accepted(code["fwtop_accepted"], watched)
        self._attach_ingress(code, lowest_links(links, chosen))
        with contextlib.suppress(OSError):
            self._keep("kallsyms", os.open("/proc/kallsyms", os.O_RDONLY | os.O_CLOEXEC))
        return {
            "fds": [name for name, _ in self._open],
            "interfaces": [safe_text(link.name) for link in chosen],
            "chosen": [(link.name, link.index, link.ethernet) for link in chosen],
            "places": places,
            "own": list_addresses(),
            "warnings": self._warnings(kernel),
            "reasons": {str(number): name for number, name in kernel.reasons.items()},
            "reason_slots": kernel.reason_slots,
            "counts_new": kernel.counts_new and self._accepted == "netfilter",
            "cpus": cpus,
            "ring_bytes": RING_BYTES,
            "ingress": self._ingress,
            "accepted": self._accepted,
            # In the order in which they are to be attached: what counts arrivals comes last.
            "attachments": self._attachments if self._by_links else [],
            "log_one_in": LOG_ONE_IN,
            "fast_layout": layout,
        }

    @property
    def _by_links(self) -> bool:
        return (self._ingress, self._accepted) == ("tcx", "netfilter")

    def _warnings(self, kernel: Kernel) -> list[str]:
        if kernel.reasons:
            return []
        return ["this kernel (before 5.17) gives no drop reasons: drops are told by the place in its code"]

    def _keep(self, name: str, descriptor: int) -> int:
        self._open.append((name, descriptor))
        return descriptor

    def _create_maps(self, cells: int, watched: list[int]) -> dict[int, int]:
        """Create the maps and return their descriptors by the numbers that the byte code has for them."""
        ring = bpf.create_map(bpf.MAP_RINGBUF, "fwtop_ring", entries=RING_BYTES)
        descriptors = {_MAP_NUMBERS["ring"]: self._keep("ring", ring)}
        rings = dict(self._open).get("fast:rings")
        if rings is not None:
            xdp_maps.put_ring({"rings": rings}, self._slot, ring)
        words = [0] * (CONTROL_WORDS - 1) + [os.stat("/proc/self/ns/net").st_ino, *watched]
        for name, size in (("cells", cells), ("control", 4 * len(words))):
            descriptor = bpf.create_map(
                bpf.MAP_ARRAY, f"fwtop_{name}", entries=1, key_size=4, value_size=size, flags=bpf.F_MMAPABLE
            )
            descriptors[_MAP_NUMBERS[name]] = self._keep(name, descriptor)
        with mmap.mmap(descriptors[_MAP_NUMBERS["control"]], _pages(4 * len(words))) as control:
            struct.pack_into(f"<{len(words)}I", control, 0, *words)
        return descriptors

    def _share_fast(self, given: dict[str, int]) -> dict[str, int]:
        """Have what compiled XDP rules drop, now or later, sampled into the ring; return the maps' layout.

        Watching goes on without where the kernel can't make the maps.
        """
        with contextlib.suppress(OSError):
            shared = given or xdp_maps.create_shared()
            for name, descriptor in shared.items():
                self._keep(f"fast:{name}", descriptor)
            for name, descriptor in xdp_maps.console_descriptors(shared).items():
                self._keep(f"xdp:{name}", descriptor)
            return xdp_maps.layout()
        return {}

    def _attach_drops(self, code: bytes, tracepoint: int) -> None:
        program = bpf.load_program(bpf.TRACEPOINT, "fwtop_drop", code, tracepoint)
        self._attach_program(program, [Place("tracepoint")])

    def _attach_accepted(self, code: bytes, watched: list[int]) -> None:
        try:
            if "netfilter" in self._without:
                raise OSError(errno.EINVAL, "netfilter links were ruled out")
            program = bpf.load_program(bpf.NETFILTER, "fwtop_accepted", code)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 6.4 doesn't know the type
                raise
            self._log_accepted(watched)
            return
        hooks = [(family, hook) for family in (_IPV4, _IPV6) for hook in (_INPUT, _FORWARD)]
        places = [Place("netfilter", family=family, hook=hook, priority=_LAST) for family, hook in hooks]
        self._attach_program(program, places)

    def _log_accepted(self, watched: list[int]) -> None:
        from fwtop.collect import nflog  # with numpy, for which nobody should wait who doesn't need it

        self._accepted = "nflog"
        self._keep("nflog", nflog.bind(nftables.FIRST_GROUP + self._slot))
        owner = nftables.add_table(watched, slot=self._slot, one_in=LOG_ONE_IN, bytes_each=DATA_BYTES)
        if owner is not None:
            self._keep("hold:table", owner)

    def _attach_ingress(self, code: dict[str, bytes], chosen: list[Link]) -> None:
        for link in chosen:
            name = "fwtop_ingress" if link.ethernet else "fwtop_ingress_ip"
            program = bpf.load_program(bpf.TC, name, code[name])
            try:
                if "tcx" in self._without:
                    raise OSError(errno.EINVAL, "TCX was ruled out")
                self._attach_program(program, [Place("tcx", ifindex=link.index)])
            except OSError as error:
                if error.errno != errno.EINVAL:  # a kernel before 6.6 doesn't know it
                    os.close(program)
                    raise
                self._ingress = "clsact"
                clsact.attach(program, link.index, self._slot)
                os.close(program)

    def _attach_program(self, program: int, places: list[Place]) -> None:
        """Attach at each place; the console may close such a link and attach the program there again."""
        links = [place.attach(program) for place in places]
        number = len(self._attachments)
        self._keep(f"program:{number}", program)
        for at, (place, link) in enumerate(zip(places, links, strict=True)):
            self._keep(f"link:{number}:{at}", link)
            self._attachments.append(
                {"program": f"program:{number}", "link": f"link:{number}:{at}", **asdict(place)}
            )


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _possible_cpus() -> int:
    last = Path("/sys/devices/system/cpu/possible").read_text().strip().split(",")[-1].split("-")[-1]
    return int(last) + 1
