"""Checks of the installation: users, directories, data files, terminal."""

from __future__ import annotations

import locale
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from fwtop.cli.doctor.check import MISSING, OK, UNKNOWN, WARNING, Check
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.rules.costs import load_costs
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile

_GROUP = "installation"
_SETUP = "make setup"
_SMALLEST = (80, 24)


def checks(geoip: str | None) -> Iterator[Check]:
    """Check the installed copy, its users, the directories, the GeoIP data and the terminal."""
    yield _program()
    yield _user(paths.CONSOLE_USER, "console's user")
    yield _user(paths.DISSECTOR_USER, "dissector's user")
    yield _directory(paths.STATE_DIRECTORY, paths.CONSOLE_USER, "sessions")
    yield _directory(paths.GUARDIAN_DIRECTORY, "root", "policies that were kept")
    yield from _geoip(geoip)
    yield Check(_GROUP, "costs of rules", OK, load_costs().note)
    yield _terminal()


def _program() -> Check:
    build = paths.build_id()
    if build == "clone":
        detail = f"this is the clone {safe_text(paths.ROOT)}, not the installed program"
        return Check(_GROUP, "program", WARNING, detail, _SETUP)
    return Check(_GROUP, "program", OK, f"{safe_text(paths.ROOT)}, build {safe_text(build)}")


def _user(user: str, name: str) -> Check:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return Check(_GROUP, name, WARNING, f"there is no user {user}: nobody is used instead", _SETUP)
    return Check(_GROUP, name, OK, f"{user} (uid {entry.pw_uid})")


def _directory(path: Path, owner: str, what: str) -> Check:
    name = f"{what}: {path}"
    try:
        found = path.stat()
    except FileNotFoundError:
        return Check(_GROUP, name, WARNING, "missing", _SETUP)
    except OSError as error:
        return Check(_GROUP, name, UNKNOWN, safe_text(error.strerror))
    try:
        has = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        has = str(found.st_uid)
    mode = stat.S_IMODE(found.st_mode)
    if has != owner or mode != 0o700:
        detail = f"belongs to {safe_text(has)} with mode {mode:04o}, should be {owner} with 0700"
        return Check(_GROUP, name, WARNING, detail, f"chown {owner} {path} && chmod 0700 {path}")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return Check(_GROUP, name, WARNING, "on a read-only file system", f"mount -o remount,rw {path}")
    free = shutil.disk_usage(path).free // (1 << 20) if os.geteuid() == 0 else 0
    return Check(_GROUP, name, OK, f"0700, {owner}" + (f", {free:,} MiB free" if free else ""))


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
        return [Check(_GROUP, "GeoIP", UNKNOWN, str(error))]


def _databases(path: str | None) -> Iterator[Check]:
    from fwtop.enrich.geoip import GeoLookup, open_lookup

    try:
        lookup = open_lookup(path)
    except FwtopError as error:
        yield Check(_GROUP, "GeoIP", MISSING, str(error))
        return
    if not isinstance(lookup, GeoLookup):
        yield Check(_GROUP, "GeoIP", WARNING, "no data: countries and networks stay unknown", _SETUP)
        return
    for warning in lookup.warnings:
        yield Check(_GROUP, "GeoIP", WARNING, warning)
    described = lookup.describe()
    stale = "getting stale" in described
    remedy = "fwtop geoip update FILE|URL" if stale else ""
    yield Check(_GROUP, "GeoIP", WARNING if stale else OK, described, remedy)


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "terminal", OK, "not a terminal; in one, sudo fwtop opens the screen")
    size = shutil.get_terminal_size()
    term, encoding = os.environ.get("TERM", ""), locale.getpreferredencoding(do_setlocale=False)
    detail = f"{safe_text(term, limit=40)}, {size.columns}×{size.lines}, {encoding}"
    if term in ("", "dumb"):
        return Check(
            "terminal", "terminal", WARNING, f"{detail}: can't show the screen", "export TERM=xterm-256color"
        )
    if size.columns < _SMALLEST[0] or size.lines < _SMALLEST[1]:
        return Check(
            "terminal", "terminal", WARNING, f"{detail}: smaller than 80×24", "make the window larger"
        )
    if encoding.upper().replace("-", "") != "UTF8":
        return Check("terminal", "terminal", WARNING, f"{detail}: not UTF-8", "export LC_ALL=C.UTF-8")
    return Check("terminal", "terminal", OK, detail)
