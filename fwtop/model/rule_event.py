"""Something that changed about the machine's rules and sets, by fwtop or by anybody else."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

NOTIFIED, COMPARED = "notified", "compared"  # by the kernel at once; found by comparing two readings
OURS, OTHERS = "fwtop", "other"


class RuleEvent(Struct, frozen=True):
    """One change. Its texts are sanitised."""

    at: float  # Unix seconds; of what is compared, when it was found
    event: str  # rule_added, set_changed, …
    how: str  # NOTIFIED, COMPARED
    by: str = OTHERS  # whose the object is, by its name: OURS, OTHERS
    source: str = ""  # nft, iptables-legacy, ipset, …
    about: dict[str, Any] = field(default_factory=dict)  # what is known of it
