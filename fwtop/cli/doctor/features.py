"""Checks that try kernel features out, in a network namespace that ends with this process.

`run()` runs this module under unshare(1), so that nothing touches the machine's rules and nothing is left
behind. The module prints its checks as a JSON list.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial

from fwtop.cli.doctor.checks import MISSING, OK, UNKNOWN, WARNING, Check
from fwtop.kernel.programs import module_argv
from fwtop.kernel.programs import run as run_program
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json
from fwtop.rules.kinds import KINDS

_TIMEOUT_SECONDS = 30
_TC_PASS = -1  # TC_ACT_UNSPEC, also TCX_NEXT
_XDP = 6
_LOOPBACK = 1  # its index in every new namespace
_MATCHES = {  # arguments of iptables that are needed, and those that each kind of rule needs
    "set": "-m set --match-set {set} src -j DROP",
    "comment": "-m comment --comment fwtop -j DROP",
    "NFLOG": "-j NFLOG --nflog-group 1 --nflog-size 128",
    **{name: words for known in KINDS.values() for name, words in known.probes.items()},
}
_ESSENTIAL = ("set", "comment")


def run() -> list[Check]:
    """Run the checks in a new namespace; return one unknown check without root or on failure."""
    if os.geteuid() != 0:
        return [Check("kernel", "features", UNKNOWN, "skipped: needs root", "sudo fwtop doctor")]
    try:
        argv = ["unshare", "--net", "--", *module_argv("fwtop.cli.doctor.features")]
        return of_json(list[Check], run_program(argv, timeout=_TIMEOUT_SECONDS))
    except (FwtopError, ValueError) as error:
        detail = f"could not be tried in a new namespace: {safe_text(error, limit=120)}"
        return [Check("kernel", "features", UNKNOWN, detail)]


def _tried(
    group: str, name: str, attempt: Callable[[], object], works: str, mend: str, *, essential: bool = True
) -> Check:
    try:
        attempt()
    except (OSError, FwtopError) as error:
        return Check(group, name, MISSING, safe_text(error, limit=200), mend, essential)
    return Check(group, name, OK, works, essential=essential)


def _bpf_checks() -> Iterator[Check]:
    from fwtop.compile.compiler import Kernel
    from fwtop.kernel import bpf

    # mov64 r0, value; exit (include/uapi/linux/bpf.h)
    def returning(value: int) -> bytes:
        return struct.pack("<BBhi", 0xB7, 0, 0, value) + struct.pack("<BBhi", 0x95, 0, 0, 0)

    def load(kind: bpf.ProgramType, value: int, target: int = 0) -> int:
        return bpf.load_program(kind, "fwtop_doctor", returning(value), target)

    def tracepoint() -> int:
        return bpf.attach_tracepoint(load(bpf.TRACEPOINT, 0, Kernel.read().tracepoint))

    def ring() -> int:
        return bpf.create_map(bpf.MAP_RINGBUF, "fwtop_doctor", entries=4096)

    newer = "install a newer kernel of the distribution"
    yield _tried("kernel", "BPF at tc ingress", lambda: load(bpf.TC, _TC_PASS), "loads", newer)
    yield _tried("kernel", "BPF ring buffer", ring, "can be made", newer)
    yield _tried("kernel", "drop tracepoint", tracepoint, "attaches", newer, essential=False)
    xdp = bpf.ProgramType(_XDP)
    yield _tried("kernel", "BPF at XDP", lambda: load(xdp, 2), "loads", newer, essential=False)
    try:
        bpf.attach_tcx_ingress(load(bpf.TC, _TC_PASS), _LOOPBACK)
        yield Check("kernel", "TCX", OK, "attaches")
    except (OSError, FwtopError):
        yield Check("kernel", "TCX", WARNING, "not available (needs Linux 6.6); clsact is used instead")


def _bcc_check() -> Check:
    from fwtop.compile.compiler import compile_programs

    mend = "apt-get install python3-bpfcc"
    return _tried("kernel", "bcc", lambda: compile_programs([], {}, []), "compiles", mend)


def _xtables_checks() -> Iterator[Check]:
    for family, name, kind in ((4, "iptables", "inet"), (6, "ip6tables", "inet6")):
        try:
            run_program(
                ["ipset", *f"create fwtop{family} hash:net family {kind} timeout 60 counters".split()]
            )
        except FwtopError as error:
            mend = "modprobe ip_set_hash_net"
            yield Check("filters", f"ipset IPv{family}", MISSING, str(error), mend, essential=True)
        else:
            detail = "hash:net with timeout and counters"
            yield Check("filters", f"ipset IPv{family}", OK, detail, essential=True)
            yield _matches_check(name, f"fwtop{family}")


def _matches_check(name: str, set_name: str) -> Check:
    lacking: dict[str, str] = {}
    for match, rule in _MATCHES.items():
        try:
            run_program(
                [name, "-w", "5", "-t", "raw", "-A", "PREROUTING", *rule.format(set=set_name).split()]
            )
        except FwtopError as error:
            lacking[match] = str(error)
    if not lacking:
        return Check("filters", f"{name} matches", OK, ", ".join(_MATCHES), essential=True)
    detail = f"without {', '.join(lacking)}: {next(iter(lacking.values()))}"
    mend = "apt-get install linux-modules-extra-$(uname -r)  # Ubuntu; Debian's kernels have them"
    essential = any(match in lacking for match in _ESSENTIAL)
    return Check("filters", f"{name} matches", MISSING, detail, mend, essential)


def _nft_check() -> Check:
    chain = "{ type filter hook ingress device lo priority 0; }"
    text = f"add table netdev fwtop\nadd chain netdev fwtop c {chain}\n"
    mend, works = "apt-get install nftables", "works, with netdev ingress"
    load = partial(run_program, ["nft", "-f", "-"], text=text)
    return _tried("filters", "nftables", load, works, mend, essential=False)


def main() -> None:
    """Run all checks in this namespace, which must be a throwaway one."""
    checks = [_bcc_check(), *_bpf_checks(), *_xtables_checks(), _nft_check()]
    sys.stdout.write(to_json(checks).decode())


if __name__ == "__main__":
    main()
