"""Ways to drop (or accept) packets on a testbed's victim, each a context manager that undoes itself.

The BPF programs drop every packet: the upper bound for any real one. They are too short to need a compiler,
and attached by links, which go away with their descriptors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from fwtop.bench.frame import Row, progress
from fwtop.bench.programs import run_fwtop
from fwtop.bench.receiver import PORT
from fwtop.bench.testbed import PAYLOAD_START, SOURCES, Testbed
from fwtop.kernel import bpf, clsact
from fwtop.kernel.bpf import ProgramType
from fwtop.kernel.namespaces import inside
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

Context = contextlib.AbstractContextManager[object]
DropMethod = Callable[[], Context]
TO_PORT = ["-p", "udp", "--dport", str(PORT)]
FWTOP_PORT = ["--proto", "udp", "--dport", str(PORT)]
UNIT = "packets/s and core"
_SET = "bench"
_CLOCK = "bench-on"
_CHAIN = "table {} bench {{\n {}\n chain only {{\n  {}\n }}\n}}\n"
_TRACK = "type filter hook input priority 0; ct state new accept"
_NETDEV = "type filter hook ingress device {} priority -500; udp dport {} {}drop"
_NFT_CLOCK = "set on { type ether_type; flags timeout; elements = { 0x0800 timeout 600s } }"


def throughput(testbed: Testbed, seconds: float, method: DropMethod) -> float:
    """Return packets per second of the victim's receiving core while a method is in place."""
    with method():
        return testbed.core_pps(seconds)


def row(first: tuple[str, float], name: str, kpps: float | None, value: Callable[[], float]) -> Row:
    """Return a row beside what was published, if that was, by its ratio to the first (name, kpps)."""
    published = kpps / first[1] if kpps is not None else None
    return Row(name, UNIT, value, None if name == first[0] else first[0], published)


def raw(testbed: Testbed, *words: str) -> Context:
    """Insert one rule at the head of raw PREROUTING."""
    return iptables(testbed, "raw", "PREROUTING", *words)


def iptables(testbed: Testbed, table: str, chain: str, *words: str) -> Context:
    """Insert one rule at the head of a chain."""
    start = ["iptables" if testbed.family == 4 else "ip6tables", "-t", table]
    return testbed.rules([[*start, "-I", chain, *words]], [[*start, "-D", chain, *words]])


def raw_drop(testbed: Testbed) -> Context:
    """Drop the flood at the head of raw PREROUTING."""
    return raw(testbed, *TO_PORT, "-j", "DROP")


def notrack(testbed: Testbed) -> Context:
    """Keep the flood out of connection tracking."""
    return raw(testbed, *TO_PORT, "-j", "CT", "--notrack")


def tracking(testbed: Testbed) -> Context:
    """Install a stateful rule, which turns connection tracking on."""
    return _nft(testbed, "inet", _TRACK)


def netdev_drop(testbed: Testbed, port: int = PORT, *, timed: bool = False) -> Context:
    """Drop UDP to a port (the flood's) in nftables' netdev ingress hook; if `timed`, while a set says so."""
    clock, asks = (_NFT_CLOCK, "meta protocol @on ") if timed else ("", "")
    return _nft(testbed, "netdev", _NETDEV.format(VICTIM_INTERFACE, port, asks), clock)


@contextlib.contextmanager
def _clock(testbed: Testbed) -> Iterator[list[str]]:
    """Make an ipset of all IPv4 addresses with a timeout; yields the match that asks it for the source."""
    made = f"create {_CLOCK} hash:net timeout 600\nadd {_CLOCK} 0.0.0.0/1\nadd {_CLOCK} 128.0.0.0/1\n"
    testbed.run("ipset", "restore", text=made)
    try:
        yield ["-m", "set", "--match-set", _CLOCK, "src"]
    finally:
        testbed.run("ipset", "destroy", _CLOCK)


@contextlib.contextmanager
def timed(testbed: Testbed, method: Callable[..., Context]) -> Iterator[None]:
    """Use a method, which takes further matches as `also`, with a lookup in a set that has a timeout."""
    with _clock(testbed) as asked, method(also=asked):
        yield


def string_drop(
    testbed: Testbed, algorithm: str, text: str = PAYLOAD_START, also: Sequence[str] = ()
) -> Context:
    """Drop by xt_string, with Boyer-Moore ("bm") or Knuth-Morris-Pratt ("kmp")."""
    match = ["-m", "string", "--string", text, "--algo", algorithm]
    return raw(testbed, *TO_PORT, *match, *also, "-j", "DROP")


def hashlimit_drop(
    testbed: Testbed, prefix_length: int, port: int = PORT, also: Sequence[str] = ()
) -> Context:
    """Drop UDP to a port (the flood's) above 1,000 packets/s per source prefix (xt_hashlimit)."""
    match = ["-m", "hashlimit", "--hashlimit-name", _SET, "--hashlimit-mode", "srcip"]
    match += ["--hashlimit-srcmask", str(prefix_length), "--hashlimit-above", "1000/s"]
    return raw(testbed, "-p", "udp", "--dport", str(port), *also, *match, "-j", "DROP")


def ipset_drop(testbed: Testbed, entries: int, first: str = SOURCES) -> Context:
    """Drop by a hash:net set of `entries` prefixes, of which the first covers the flood's sources."""
    lines = [f"create {_SET} hash:net family inet maxelem 1048576", f"add {_SET} {first}"]
    lines += [
        f"add {_SET} {20 + number // 65536}.{number // 256 % 256}.{number % 256}.0/24"
        for number in range(entries - 1)
    ]

    def filled_set() -> Context:
        testbed.run("ipset", "restore", text="\n".join(lines) + "\n")
        return testbed.rules([], [["ipset", "destroy", _SET]])

    match = ["-m", "set", "--match-set", _SET, "src"]
    return all_of(filled_set, partial(raw, testbed, *match, "-j", "DROP"))


@contextlib.contextmanager
def _nft(testbed: Testbed, family: str, chain: str, sets: str = "") -> Iterator[None]:
    testbed.run("nft", "-f", "-", text=_CHAIN.format(family, sets, chain))
    try:
        yield
    finally:
        testbed.run("nft", "delete", "table", family, "bench")


@contextlib.contextmanager
def all_of(*methods: DropMethod) -> Iterator[None]:
    """Apply several methods at once, in order."""
    with contextlib.ExitStack() as stack:
        for method in methods:
            stack.enter_context(method())
        yield


@contextlib.contextmanager
def fwtop_rule(testbed: Testbed, words: list[str]) -> Iterator[None]:
    """Install one of fwtop's rules on the victim by its command line, and undo it."""
    run_fwtop(*words, "--yes", "--netns", testbed.victim)
    try:
        yield
    finally:
        run_fwtop("undo", "--all", "--netns", testbed.victim)


def installable(
    testbed: Testbed, commands: Mapping[str, list[str]], notes: list[str]
) -> dict[str, DropMethod]:
    """Try fwtop command lines; return those that work here by name, and note why the others don't."""
    found: dict[str, DropMethod] = {}
    for name, words in commands.items():
        method = partial(fwtop_rule, testbed, words)
        progress(f"trying {name}")
        try:
            with method():
                found[name] = method
        except FwtopError as error:
            notes.append(f"{name} is left out: {safe_text(error)}")
    return found


_XDP_DROP, _TC_ACT_SHOT = 1, 2


def instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """Encode one instruction of eBPF."""
    return struct.pack("<BBhi", code, source << 4 | to, offset, number)


def _return(verdict: int) -> bytes:
    return instruction(0xB7, number=verdict) + instruction(0x95)


@contextlib.contextmanager
def attached(netns: str, kind: ProgramType, code: bytes, attach: Callable[[int, int], int]) -> Iterator[None]:
    """Keep a program attached to the victim's interface; `attach` maps program and ifindex to a link."""
    with contextlib.ExitStack() as descriptors:
        try:
            program = bpf.load_program(kind, "bench", code)
            descriptors.callback(os.close, program)
            with inside(netns):
                link = attach(program, socket.if_nametoindex(VICTIM_INTERFACE))
            descriptors.callback(os.close, link)
        except OSError as error:
            raise FwtopError(f"bpf: {error.strerror}; the lab is taken down", 3) from None
        yield


def xdp_drop(netns: str, *, native: bool = True) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the victim's driver, or in the generic XDP hook."""
    return attached(netns, bpf.XDP, _return(_XDP_DROP), partial(bpf.attach_xdp, native=native))


@contextlib.contextmanager
def tc_drop(netns: str) -> Iterator[None]:
    """Drop everything at the victim's tc ingress: by a TCX link, or by a clsact filter before Linux 6.6."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(attached(netns, bpf.TC, _return(_TC_ACT_SHOT), bpf.attach_tcx_ingress))
        except FwtopError:
            stack.enter_context(_filtered(netns))
        yield


@contextlib.contextmanager
def _filtered(netns: str) -> Iterator[None]:
    with inside(netns):
        index = socket.if_nametoindex(VICTIM_INTERFACE)
    program = bpf.load_program(bpf.TC, "bench", _return(_TC_ACT_SHOT))
    try:
        with inside(netns):
            clsact.attach_rules(program, index, "tc")
        yield
    finally:
        with inside(netns):
            clsact.detach_rules(index, "tc")
        os.close(program)
