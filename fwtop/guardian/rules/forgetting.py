"""Delete the entries of connections that a rule exempts from tracking.

No packet finds them any more, yet they stay until their time is over: an established one for five days. In a
full table they are what keeps new clients of other services out.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from fwtop.model.rule import Rule
from fwtop.netfilter import ctnetlink

_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_Service = tuple[int, int | None, int]  # family, protocol, port


def forget(rule: Rule, serve_urgent: Callable[[], None]) -> int:
    """Delete the entries of a rule's parts that ask for it, and return how many; raises OSError."""
    services = [
        (family, part.match.protocol, part.match.dport)
        for part in rule.parts or (rule,)
        if part.forget and part.match.dport is not None
        for family in part.match.families
    ]
    if not services:
        return 0
    before = _count()
    slow = {service for service in services if not _at_once(service)}
    if slow:
        chosen = (item for item in ctnetlink.entries() if (item.family, item.protocol, item.dport) in slow)
        for _ in ctnetlink.forget(chosen):
            serve_urgent()
    return max(0, before - _count())


def _at_once(service: _Service) -> bool:
    """Let the kernel choose them, which takes milliseconds; returns whether it can (Linux 6.11)."""
    family, protocol, port = service
    if protocol is None:
        return False
    try:
        ctnetlink.forget_service(family, protocol, port)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _count() -> int:
    try:
        return int(_COUNT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
