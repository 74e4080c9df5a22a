"""The points of an install and an undo at which a crash must leave nothing half done.

The code that changes the kernel passes each of these; tests end the guardian with SIGKILL at every one.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Step(StrEnum):
    """Where the guardian is; the value is what `--crash-at` takes."""

    INTENT = "intent"  # journalled, kernel untouched
    ALLOW = "allow"  # allow-list sets exist
    SETS = "sets"  # the rule's sets exist and are filled
    CHAIN_V4 = "chain4"  # IPv4 chain asks them
    CHAIN_V6 = "chain6"  # IPv6 chain too
    NFT = "nft"  # nftables: the rule's lines and sets are in, its clock runs
    COMPILED = "compiled"  # XDP: the program with the rule runs, the rule is inert
    ARMED = "armed"  # XDP: it hits
    SETTING = "setting"  # a sysctl is written, the journal knows the old value
    INSTALLED = "installed"  # journal says so, the client doesn't know yet
    RENEWED = "renewed"  # keep: kernel has the new time, journal not yet
    KEPT = "kept"
    UNDO = "undo"  # journalled, kernel untouched
    DISARMED = "disarmed"  # XDP: inert, but still in the program
    UNLOADED = "unloaded"  # XDP: out of the program
    UNNFT = "unnft"  # nftables: they are out
    RESTORED = "restored"  # a sysctl has its old value, the journal thinks it has not
    UNCHAINED = "unchained"  # chains don't ask any more
    UNSET = "unset"  # sets are gone, journal not told yet
    UNDONE = "undone"


class Steps:
    """Told of every step; ends the process at one of them when a test asked for it."""

    def __init__(self, crash_at: str | None = None) -> None:
        self._crash_at = Step(crash_at) if crash_at else None
        self.armed = False  # the steps of cleaning up at the start are not the ones meant

    def reached(self, step: Step) -> None:
        """Pass a step."""
        if self.armed and step is self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
