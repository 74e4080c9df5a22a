"""Named points where tests kill the guardian with SIGKILL, or have it fail.

They are in an install, a keep, a repair, an undo, a change of a level, of the allow-list and of a named list.

The next guardian must find nothing half done, whichever one it was.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Failpoint(StrEnum):
    """A point that the guardian has just passed; the value is what `--crash-at` takes."""

    INTENT = "intent"  # journalled, kernel untouched
    ALLOW = "allow"  # the allow-list's sets exist, and all of the rule's
    SETS = "sets"  # the sets of a long list exist and are filled; short ones come with the allow-list
    BESIDE = "beside"  # the stateless lines stand beside those on states, everything is still tracked
    CHAIN_V4 = "chain4"  # the IPv4 chain has the rule's lines
    CHAIN_V6 = "chain6"  # and the IPv6 chain
    NFT = "nft"  # nftables: the rule's lines and sets are in, its timeout runs
    COMPILED = "compiled"  # XDP: the program with the rule runs, the rule has no deadline yet
    ENABLED = "enabled"  # XDP: its deadline is set
    SETTING = "setting"  # a sysctl is written, the old value is recorded
    INSTALLED = "installed"  # journalled as installed, the client not answered yet
    CLOSED = "closed"  # open connections are closed, the rule is not journalled as installed yet
    FOLLOWED = "followed"  # the sets of a rule spare a changed allow-list, its lines are where they were
    RENEWED = "renewed"  # keep: the kernel has the new timeout, the record not yet
    KEPT = "kept"
    REPAIR = "repair"  # journalled as being repaired, kernel untouched
    REPAIR_SYSCTLS = "repair-sysctls"  # repair: sysctls have the rule's values again
    REPAIR_SETS = "repair-sets"  # repair: the rule's sets are filled again
    REPAIR_CHAIN_V4 = "repair-chain4"  # repair: the IPv4 chain is complete again
    REPAIR_CHAIN_V6 = "repair-chain6"  # and the IPv6 chain
    REPAIR_NFT = "repair-nft"  # repair, nftables: lines and sets are complete again
    REPAIR_COMPILED = "repair-compiled"  # repair, XDP: the program is attached, the deadline set again
    REPAIRED = "repaired"  # journalled, the client not answered yet
    SWITCHING = "switching"  # a rule's new level or mode is journalled, the kernel has the old one
    ASIDE = "aside"  # its lines are those that are to be, and ask copies of its sets
    SWITCHED = "switched"  # the kernel has the new one, the client has no answer yet
    UNDO = "undo"  # recorded as ending, kernel untouched
    DISABLED = "disabled"  # XDP: the deadline is zero, the rule still compiled in
    INACTIVE = "inactive"  # the rule no longer drops anything; all of its objects are still there
    UNLOADED = "unloaded"  # XDP: out of the program
    NFT_REMOVED = "nft-removed"  # nftables: the rule's lines and sets are out
    RESTORED = "restored"  # a sysctl has its old value, which is not recorded yet
    CHAINS_REMOVED = "chains-removed"  # the chains have no line of the rule any more
    SETS_DESTROYED = "sets-destroyed"  # the sets are gone, which is not recorded yet
    UNDONE = "undone"
    LIST_CREATED = "list-created"  # a named list is recorded, the client not answered yet
    LIST_PREPARED = "list-prepared"  # what its change needs is built aside, nothing recorded
    LIST_RECORDED = "list-recorded"  # the changed list is recorded beside the old one, which the kernel has
    LIST_COMPILED = "list-compiled"  # compiled rules have the new list, ipsets the old one
    LIST_CHANGED = "list-changed"  # the kernel has the new list, which is still recorded beside the old one
    LIST_DONE = "list-done"  # recorded in the old one's place, the client not answered yet


class Failpoints:
    """Kills the process at the failpoint that a test chose, or fails there."""

    def __init__(self, crash_at: Failpoint | None = None) -> None:
        self._crash_at = crash_at
        self.errors: dict[Failpoint, Exception] = {}  # to be raised
        self.enabled = False  # only after start-up, whose cleaning up passes some of them too

    def reached(self, failpoint: Failpoint) -> None:
        """Pass a failpoint."""
        if self.enabled and failpoint is self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if failpoint in self.errors:
            raise self.errors[failpoint]
