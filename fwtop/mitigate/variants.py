"""Which iptables this namespace uses: the nf_tables one or the legacy one.

Both can hold rules at once, and a packet then passes through both. fwtop installs into the one in use
and says so when both are: iptables(8), xtables-nft(8).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fwtop.mitigate.run import ENVIRONMENT, run
from fwtop.model.errors import FwtopError

NFT = "nft"
LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class Variant:
    """The programs of one iptables variant."""

    name: str  # NFT or LEGACY
    suffix: str  # "-nft", "-legacy", or "" where the distribution ships one variant only

    def program(self, family: int) -> str:
        """Return the program that lists and changes rules of a family."""
        return f"{'iptables' if family == 4 else 'ip6tables'}{self.suffix}"

    def save(self, family: int) -> list[str]:
        """Return the argv that prints table raw with counters; exit status 0 also when there is none."""
        return [f"{self.program(family)}-save", "-c", "-t", "raw"]

    def restore(self, family: int) -> list[str]:
        """Return the argv that applies a transaction.

        Legacy returns 4 while another process holds its lock, so it is told to wait; nft has none.
        """
        wait = ["-w", "10"] if self.name == LEGACY else []
        return [f"{self.program(family)}-restore", "--noflush", *wait]


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant in use and what the operator should know about it."""

    variant: Variant
    warnings: tuple[str, ...] = ()


def named(name: str) -> Variant:
    """Return a variant by its name, with the programs that are installed here."""
    suffix = f"-{name}"
    return Variant(name, suffix if _has(f"iptables{suffix}") else "")


def choose() -> Choice:
    """Look at both variants in this namespace and choose the one in use.

    Rules of only one variant: that one. Of neither or both: what `iptables` stands for, with a warning
    where both hold rules. Reads only; a legacy table is never loaded by looking. Raises FwtopError
    (code 3) where iptables is missing.
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
    return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def _nft_in_use(default: str) -> bool:
    programs = [name for name in ("iptables-nft-save", "ip6tables-nft-save") if _has(name)]
    if not programs and default == NFT:
        programs = ["iptables-save", "ip6tables-save"]
    return any(_holds_rules(run([program])) for program in programs)


def _legacy_in_use(default: str) -> bool:
    for prefix, names in (("ip", "/proc/net/ip_tables_names"), ("ip6", "/proc/net/ip6_tables_names")):
        program = f"{prefix}tables-legacy-save" if _has(f"{prefix}tables-legacy-save") else ""
        if not program and default == LEGACY:
            program = f"{prefix}tables-save"
        try:
            loaded = Path(names).read_text().split()
        except OSError:
            continue  # this kernel has no legacy tables
        if program and any(_holds_rules(run([program, "-t", table])) for table in loaded):
            return True
    return False


def _holds_rules(saved: str) -> bool:
    return any(line.startswith("-A ") and "FWTOP" not in line for line in saved.splitlines())
