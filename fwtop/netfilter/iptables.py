"""The iptables variant that this namespace uses: nf_tables or legacy (iptables(8), xtables-nft(8)).

Both can hold rules at the same time, and packets then traverse both. fwtop uses the one that is in use, and
warns if both are.
"""

from __future__ import annotations

import os

from msgspec import Struct

from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import ENVIRONMENT, RUN_SECONDS, CommandError, run
from fwtop.model.errors import FwtopError
from fwtop.netfilter import nf_tables
from fwtop.netfilter.saved import Saved, parse

NFT = "nft"
LEGACY = "legacy"
TABLES = ("filter", "nat", "mangle", "raw", "security")
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

    def save(self, family: int, table: str = "", *, seconds: float = RUN_SECONDS) -> str:
        """Return what the variant's iptables-save prints, of one table or all; raises FwtopError.

        Of the legacy variant, ask for none that the kernel has not loaded: to list it would load it.
        """
        return run([f"{self.program(family)}-save", "-c", *(["-t", table] if table else [])], timeout=seconds)

    def read(self, family: int, table: str = "", *, seconds: float = RUN_SECONDS) -> Saved:
        """Read that; raises FwtopError."""
        return parse(self.save(family, table, seconds=seconds), family)

    def restore(
        self, family: int, text: str, *, lock_seconds: int = LOCK_SECONDS, seconds: float = RUN_SECONDS
    ) -> None:
        """Carry out a transaction; raises FwtopError.

        Legacy waits `lock_seconds` for another process's lock, then exits with LOCKED; nft has no lock.
        """
        wait = ["-w", str(lock_seconds)] if self.name == LEGACY else []
        run([f"{self.program(family)}-restore", "--noflush", *wait], text=text, timeout=seconds)


class Choice(Struct, frozen=True):
    """The variant in use, and warnings for the operator."""

    variant: Variant
    warnings: tuple[str, ...] = ()


def named(name: str) -> Variant:
    """Return a variant by name, with the names of its programs on this machine."""
    suffix = f"-{name}"
    return Variant(name, suffix if _path(f"iptables{suffix}") else "")


def other_than(variant: Variant) -> Variant | None:
    """Return the other variant, None where the distribution ships only one."""
    name = LEGACY if variant.name == NFT else NFT
    return Variant(name, f"-{name}") if _path(f"iptables-{name}") else None


def loaded_tables(family: int) -> list[str]:
    """Return the tables of the legacy variant that the kernel has: to list another one would load it."""
    return read_text(f"/proc/net/{'ip' if family == 4 else 'ip6'}_tables_names").split()


def choose() -> Choice:
    """Return the variant that holds rules in this namespace.

    If neither or both do, it is the one that `iptables` is a link to. Reads only, and never makes the kernel
    load a legacy table. Raises FwtopError (code 3) if iptables is not installed.
    """
    if not _path("iptables"):
        raise FwtopError("iptables is not installed; nothing was changed: apt-get install iptables", 3)
    default = LEGACY if "legacy" in run(["iptables", "-V"]) else NFT
    nft, legacy = _nft_in_use(), any(_holds_rules(_legacy_saved(family)) for family in (4, 6))
    if nft and legacy:
        other = LEGACY if default == NFT else NFT
        warning = f"both iptables variants hold rules; fwtop uses {default}, packets pass {other}'s rules too"
        return Choice(named(default), (warning,))
    return Choice(named(NFT if nft else LEGACY if legacy else default))


def save_program(name: str, family: int) -> str:
    """Return the program that prints a variant's rules, "" if there is none here."""
    prefix = "iptables" if family == 4 else "ip6tables"
    if _path(f"{prefix}-{name}-save"):
        return f"{prefix}-{name}-save"
    only = _path(f"{prefix}-save")  # of a distribution that ships one variant
    is_nft = "nft" in os.path.basename(os.path.realpath(only))
    other = _path(f"{prefix}-{LEGACY if name == NFT else NFT}-save")
    return f"{prefix}-save" if only and not other and is_nft == (name == NFT) else ""


def _path(program: str) -> str:
    paths = (f"{folder}/{program}" for folder in ENVIRONMENT["PATH"].split(":"))
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def _nft_in_use() -> bool:
    programs = [program for family in (4, 6) if (program := save_program(NFT, family))]
    held = _rules_in_nf_tables()
    if held == 0 or not programs:
        return False
    return held > _MANY_RULES or any(_holds_rules(_saved([program])) for program in programs)


def _rules_in_nf_tables() -> int:
    """Return how many rules, and jumps between chains, the tables by iptables' names have."""
    found = 0
    for family in ("ip", "ip6"):
        for table in TABLES:
            try:
                found += sum((nf_tables.table_chains(f"{family} {table}") or {}).values())
            except FwtopError:
                continue
    return found


def beside(variant: Variant, family: int) -> Saved:
    """Return the legacy rules that packets pass beside those of the nft variant.

    (The other way round they are rules of nftables as all others are.) Never makes the kernel load a table.
    """
    return parse(_legacy_saved(family) if variant.name == NFT else "", family)


def _legacy_saved(family: int) -> str:
    program = save_program(LEGACY, family)
    return "".join(_saved([program, "-c", "-t", table]) for table in loaded_tables(family)) if program else ""


def _saved(argv: list[str]) -> str:
    """Return the saved rules, "" if they can't be read: that must not prevent watching or ending rules."""
    try:
        return run(argv)
    except CommandError:
        return ""


def _holds_rules(saved: str) -> bool:
    """Whether there are rules that aren't fwtop's, with counters before them or without."""
    return any("-A " in line[:60] and "FWTOP" not in line for line in saved.splitlines() if line[:1] in "-[")
