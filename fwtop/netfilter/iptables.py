"""The iptables variant that this namespace uses: nf_tables or legacy (iptables(8), xtables-nft(8)).

Both can hold rules at the same time, and packets then traverse both. fwtop uses the one that is in use, and
warns if both are.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import ENVIRONMENT, CommandError, run
from fwtop.model.errors import FwtopError
from fwtop.netfilter import nf_tables

NFT = "nft"
LEGACY = "legacy"
_TABLES = ("filter", "nat", "mangle", "raw", "security")
LOCK_SECONDS = 10  # how long a change waits for another program that holds the lock of legacy tables
REMOVAL_LOCK_SECONDS = 1  # the same when lines are removed that have no effect any more
LOCKED = 4  # exit status when that was in vain (iptables/xshared.h, RESOURCE_PROBLEM)
_MANY_RULES = 2000  # for which iptables-nft-save takes long; fwtop's own are never so many


class Variant(Struct, frozen=True):
    """The programs of one iptables variant."""

    name: str  # NFT or LEGACY
    suffix: str  # "-nft", "-legacy", or "" where the distribution ships one variant only

    def program(self, family: int) -> str:
        """Return the name of the program for a family."""
        return f"{'iptables' if family == 4 else 'ip6tables'}{self.suffix}"

    def save(self, family: int) -> list[str]:
        """Return the argv that prints table raw with counters, and exits with 0 even if there is none."""
        return [f"{self.program(family)}-save", "-c", "-t", "raw"]

    def restore(self, family: int, lock_seconds: int = LOCK_SECONDS) -> list[str]:
        """Return the argv that applies a transaction.

        Legacy waits `lock_seconds` for another process's lock, then exits with LOCKED; nft has no lock.
        """
        wait = ["-w", str(lock_seconds)] if self.name == LEGACY else []
        return [f"{self.program(family)}-restore", "--noflush", *wait]


class Choice(Struct, frozen=True):
    """The variant in use, and warnings for the operator."""

    variant: Variant
    warnings: tuple[str, ...] = ()


def named(name: str) -> Variant:
    """Return a variant by name, with the names of its programs on this machine."""
    suffix = f"-{name}"
    return Variant(name, suffix if _has(f"iptables{suffix}") else "")


def other_than(variant: Variant) -> Variant | None:
    """Return the other variant, None where the distribution ships only one."""
    name = LEGACY if variant.name == NFT else NFT
    return Variant(name, f"-{name}") if _has(f"iptables-{name}") else None


def is_loaded(family: int, table: str) -> bool:
    """Return whether the kernel has a table of the legacy variant: to list one it hasn't would load it."""
    return table in read_text(f"/proc/net/{'ip' if family == 4 else 'ip6'}_tables_names").split()


def choose() -> Choice:
    """Return the variant that holds rules in this namespace.

    If neither or both do, it is the one that `iptables` is a link to. Reads only, and never makes the kernel
    load a legacy table. Raises FwtopError (code 3) if iptables is not installed.
    """
    if not _has("iptables"):
        raise FwtopError("iptables is not installed; nothing was changed: apt-get install iptables", 3)
    default = LEGACY if "legacy" in run(["iptables", "-V"]) else NFT
    nft, legacy = _nft_in_use(default), _legacy_in_use(default)
    if nft and legacy:
        other = LEGACY if default == NFT else NFT
        warning = f"both iptables variants hold rules; fwtop uses {default}, packets pass {other}'s rules too"
        return Choice(named(default), (warning,))
    return Choice(named(NFT if nft else LEGACY if legacy else default))


def _has(program: str) -> bool:
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in ENVIRONMENT["PATH"].split(":"))


def _nft_in_use(default: str) -> bool:
    programs = [name for name in ("iptables-nft-save", "ip6tables-nft-save") if _has(name)]
    if not programs and default == NFT:
        programs = ["iptables-save", "ip6tables-save"]
    held = _rules_in_nf_tables()
    if held == 0 or not programs:
        return False
    return held > _MANY_RULES or any(_holds_rules(_saved([program])) for program in programs)


def _rules_in_nf_tables() -> int:
    """Return how many rules, and jumps between chains, the tables by iptables' names have."""
    found = 0
    for family in (4, 6):
        for table in _TABLES:
            try:
                found += sum((nf_tables.table_chains(family, table) or {}).values())
            except FwtopError:
                continue
    return found


def _legacy_in_use(default: str) -> bool:
    return any(_holds_rules(_legacy_saved(family, default == LEGACY)) for family in (4, 6))


def saved_beside(variant: Variant, family: int) -> str:
    """Return the legacy rules, with counters, that packets pass beside those of the nft variant.

    (The other way round they are rules of nftables as all others are.) Never makes the kernel load a table.
    """
    return _legacy_saved(family, False) if variant.name == NFT else ""


def _legacy_saved(family: int, is_default: bool) -> str:
    prefix = "ip" if family == 4 else "ip6"
    program = f"{prefix}tables-legacy-save" if _has(f"{prefix}tables-legacy-save") else ""
    if not program and is_default:
        program = f"{prefix}tables-save"
    try:
        loaded = Path(f"/proc/net/{prefix}_tables_names").read_text().split() if program else []
    except OSError:
        return ""  # this kernel has no legacy tables
    return "".join(_saved([program, "-c", "-t", table]) for table in loaded)


def _saved(argv: list[str]) -> str:
    """Return the saved rules, "" if they can't be read: that must not prevent watching or ending rules."""
    try:
        return run(argv)
    except CommandError:
        return ""


def _holds_rules(saved: str) -> bool:
    """Whether there are rules that aren't fwtop's, with counters before them or without."""
    return any("-A " in line[:60] and "FWTOP" not in line for line in saved.splitlines() if line[:1] in "-[")
