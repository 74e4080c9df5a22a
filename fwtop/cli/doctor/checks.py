"""Checks that only look: privileges and kernel, packet filters, the installation and the terminal."""

from __future__ import annotations

import locale
import os
import pwd
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from fwtop.console.wants import ALARMS, ALLOW, GEOIP, wants
from fwtop.guardian.allow.allowlist import ALLOW_FILE, read_allow_file
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.render.numbers import percent
from fwtop.rules.costs import load_costs
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile

OK, WARNING, MISSING, UNKNOWN = "ok", "warning", "missing", "unknown"


class Check(Struct, frozen=True):
    """The state of one feature or program.

    `essential`: fwtop can't watch or block without it. `mend`: the command that fixes it.
    """

    group: str
    name: str
    state: str
    detail: str
    mend: str = ""
    essential: bool = False

    @property
    def fatal(self) -> bool:
        """Whether fwtop can't work because of it."""
        return self.essential and self.state == MISSING


_kernel, _filters, _installed = (partial(Check, group) for group in ("kernel", "filters", "installation"))
_RING_BUFFER, _REASONS, _TCX = (5, 8), (5, 17), (6, 6)


def kernel_checks() -> Iterator[Check]:
    """Check privileges, kernel version, BTF, bpffs, lockdown and the BPF JIT."""
    yield _rights()
    yield _version()
    yield _types()
    yield _bpffs()
    yield _lockdown()
    yield _hardening()


def _rights() -> Check:
    if os.geteuid() == 0:
        return _kernel("privileges", OK, "root")
    return _kernel("privileges", UNKNOWN, "not root: some checks were skipped", "sudo fwtop doctor")


def _version() -> Check:
    release = os.uname().release
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _RING_BUFFER:
        why = f"{release}: fwtop needs Linux 5.8 or newer (BPF ring buffer)"
        return _kernel("version", MISSING, why, "install a newer kernel of the distribution", essential=True)
    lacking = [
        text
        for since, text in (
            (_REASONS, "no drop reasons before 5.17"),
            (_TCX, "no TCX before 6.6: clsact is used"),
        )
        if version < since
    ]
    return _kernel("version", OK, "; ".join([release, *lacking]), essential=True)


def _types() -> Check:
    from fwtop.compile.compiler import Kernel

    try:
        kernel = Kernel.read()
    except FwtopError as error:
        mend = "install the distribution's own kernel (it has CONFIG_DEBUG_INFO_BTF)"
        return _kernel("BTF", MISSING, str(error), mend, essential=True)
    if not kernel.reasons:
        return _kernel("BTF", WARNING, "readable, but the kernel gives no drop reasons", essential=True)
    return _kernel("BTF", OK, f"readable, {len(kernel.reasons)} drop reasons", essential=True)


def _bpffs() -> Check:
    mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    if " /sys/fs/bpf bpf " in mounts:
        return _kernel("bpffs", OK, "mounted on /sys/fs/bpf")
    detail = "not mounted: XDP rules would not outlive the guardian"
    return _kernel("bpffs", WARNING, detail, "mount -t bpf bpf /sys/fs/bpf")


def _lockdown() -> Check:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text(encoding="ascii")
    except OSError:
        return _kernel("lockdown", OK, "not in force")
    if "[confidentiality]" in text:
        mend = "boot without lockdown=confidentiality"
        return _kernel("lockdown", MISSING, "confidentiality: BPF may not read packets", mend, essential=True)
    return _kernel("lockdown", OK, text.strip())


def _hardening() -> Check:
    path = Path("/proc/sys/net/core/bpf_jit_enable")
    try:
        enabled = path.read_text(encoding="ascii").strip()
    except OSError:
        return _kernel("BPF compiler", UNKNOWN, f"{path} can't be read")
    if enabled == "0":
        return _kernel("BPF compiler", WARNING, "off: BPF is interpreted", "sysctl net.core.bpf_jit_enable=1")
    return _kernel("BPF compiler", OK, "on")


_CONNTRACK = Path("/proc/sys/net/netfilter")
_NEARLY_FULL = 0.8


def filter_checks() -> Iterator[Check]:
    """Check the required programs, the iptables variant in use, and connection tracking."""
    yield _program("ip", "iproute2", essential=True)
    yield _program("iptables", "iptables", essential=True)
    yield _program("ipset", "ipset", essential=True)
    yield _program("nft", "nftables")
    yield _program("conntrack", "conntrack")
    yield _variant()
    yield _conntrack()


def _program(name: str, package: str, *, essential: bool = False) -> Check:
    """Look for a program where fwtop runs programs from."""
    path = shutil.which(name, path=ENVIRONMENT["PATH"])
    if path:
        return _filters(name, OK, path, essential=essential)
    return _filters(name, MISSING, "not installed", f"apt-get install {package}", essential)


def _variant() -> Check:
    from fwtop.netfilter import iptables

    if os.geteuid() != 0:
        return _filters("iptables variant", UNKNOWN, "skipped: needs root", "sudo fwtop doctor")
    try:
        choice = iptables.choose()
    except FwtopError as error:
        return _filters("iptables variant", UNKNOWN, str(error))
    if choice.warnings:
        mend = "move the rules of one variant to the other: update-alternatives --config iptables"
        return _filters("iptables variant", WARNING, "; ".join(choice.warnings), mend)
    return _filters("iptables variant", OK, f"{choice.variant.name} is in use")


def _conntrack() -> Check:
    try:
        count = int((_CONNTRACK / "nf_conntrack_count").read_text(encoding="ascii"))
        limit = int((_CONNTRACK / "nf_conntrack_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _filters("connection tracking", OK, "not active")
    detail = f"{count:,} of {limit:,} entries in use ({percent(count / max(1, limit))})"
    if count > _NEARLY_FULL * limit:
        mend = f"sysctl net.netfilter.nf_conntrack_max={limit * 4}"
        return _filters("connection tracking", WARNING, f"nearly full: {detail}", mend)
    return _filters("connection tracking", OK, detail)


_SETUP = "make setup"
_SMALLEST = (80, 24)


def installed_checks(geoip: str | None) -> Iterator[Check]:
    """Check the installed copy, its users, the directories, the GeoIP data and the terminal."""
    yield _copy()
    yield _user(paths.CONSOLE_USER, "console's user")
    yield _user(paths.DISSECTOR_USER, "dissector's user")
    yield _directory(paths.STATE_DIRECTORY, paths.CONSOLE_USER, "sessions")
    yield _directory(paths.GUARDIAN_DIRECTORY, "root", "policies that were kept")
    yield from _geoip(geoip)
    missing = wants(allow=bool(read_allow_file(Path(ALLOW_FILE))[0]), geoip=True)
    for want in (ALLOW, ALARMS):
        lacks = want in missing
        yield _installed(want.name, WARNING if lacks else OK, want.lacks if lacks else "set up", want.mend)
    yield _installed("costs of rules", OK, load_costs().note)
    yield _terminal()


def _copy() -> Check:
    build = paths.build_id()
    if build == "clone":
        detail = f"this is the clone {safe_text(paths.ROOT)}, not the installed program"
        return _installed("program", WARNING, detail, _SETUP)
    return _installed("program", OK, f"{safe_text(paths.ROOT)}, build {safe_text(build)}")


def _user(user: str, name: str) -> Check:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return _installed(name, WARNING, f"there is no user {user}: nobody is used instead", _SETUP)
    return _installed(name, OK, f"{user} (uid {entry.pw_uid})")


def _directory(path: Path, owner: str, what: str) -> Check:
    name = f"{what}: {path}"
    try:
        found = path.stat()
    except FileNotFoundError:
        return _installed(name, WARNING, "missing", _SETUP)
    except OSError as error:
        return _installed(name, UNKNOWN, safe_text(error.strerror))
    try:
        has = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        has = str(found.st_uid)
    mode = stat.S_IMODE(found.st_mode)
    if has != owner or mode != 0o700:
        detail = f"belongs to {safe_text(has)} with mode {mode:04o}, should be {owner} with 0700"
        return _installed(name, WARNING, detail, f"chown {owner} {path} && chmod 0700 {path}")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return _installed(name, WARNING, "on a read-only file system", f"mount -o remount,rw {path}")
    free = shutil.disk_usage(path).free // (1 << 20) if os.geteuid() == 0 else 0
    return _installed(name, OK, f"0700, {owner}" + (f", {free:,} MiB free" if free else ""))


def _geoip(path: str | None) -> Iterable[Check]:
    """Check the databases with the rights of the console, which reads them: root parses no foreign file."""
    from fwtop.enrich.geoip import BUNDLED, USUAL_PLACES

    if os.geteuid() != 0:
        return _databases(path)
    places: tuple[Path | str, ...] = (*USUAL_PLACES, BUNDLED.parent, *([path] if path is not None else []))
    try:
        return ask(
            lambda: [*_databases(path)],
            list[Check],
            who="the reader of GeoIP data",
            after="whether it can be used is not known",
            enter=lambda: unprivileged(Profile.READER, read=places),
        )
    except FwtopError as error:
        return [_installed("GeoIP", UNKNOWN, str(error))]


def _databases(path: str | None) -> Iterator[Check]:
    from fwtop.enrich.geoip import GeoLookup, open_lookup

    try:
        lookup = open_lookup(path)
    except FwtopError as error:
        yield _installed("GeoIP", MISSING, str(error))
        return
    if not isinstance(lookup, GeoLookup):
        yield _installed(GEOIP.name, WARNING, GEOIP.lacks, GEOIP.mend)
        return
    for warning in lookup.warnings:
        yield _installed("GeoIP", WARNING, warning)
    described = lookup.describe()
    stale = "getting stale" in described
    remedy = "fwtop geoip update FILE|URL" if stale else ""
    yield _installed("GeoIP", WARNING if stale else OK, described, remedy)


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "terminal", OK, "not a terminal; in one, sudo fwtop opens the screen")
    size = shutil.get_terminal_size()
    term, encoding = os.environ.get("TERM", ""), locale.getpreferredencoding(do_setlocale=False)
    detail = f"{safe_text(term, limit=40)}, {size.columns}×{size.lines}, {encoding}"
    wrong = ""
    if term in ("", "dumb"):
        wrong, mend = "can't show the screen", "export TERM=xterm-256color"
    elif size.columns < _SMALLEST[0] or size.lines < _SMALLEST[1]:
        wrong, mend = "smaller than 80×24", "make the window larger"
    elif encoding.upper().replace("-", "") != "UTF8":
        wrong, mend = "not UTF-8", "export LC_ALL=C.UTF-8"
    if wrong:
        return Check("terminal", "terminal", WARNING, f"{detail}: {wrong}", mend)
    return Check("terminal", "terminal", OK, detail)
