"""The sysctls that help under attack: names, limits, and the direction in which they may change."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Direction(Enum):
    """The direction in which a mitigation may change a setting; the other one would help the attack."""

    UP = "raised"
    DOWN = "shortened"
    EITHER = "changed"


class Tunable(Struct, frozen=True):
    """A sysctl that a rule may set (Documentation/networking/{ip-sysctl,nf_conntrack-sysctl}.rst)."""

    short: str  # as the command line takes it
    name: str  # dotted
    low: int
    high: int
    direction: Direction
    text: str

    @property
    def path(self) -> str:
        """The file in /proc/sys."""
        return "/proc/sys/" + self.name.replace(".", "/")


def _tcp(name: str, low: int, high: int, direction: Direction, text: str) -> Tunable:
    return Tunable(name.removeprefix("max_"), f"net.ipv4.tcp_{name}", low, high, direction, text)


def _conntrack(name: str, low: int, high: int, direction: Direction, text: str) -> Tunable:
    return Tunable(f"conntrack_{name}", f"net.netfilter.nf_conntrack_{name}", low, high, direction, text)


def _timeout(name: str, text: str) -> Tunable:
    return _conntrack(name, 1, 432_000, Direction.DOWN, f"seconds: {text}")


_ALL = (
    _tcp("syncookies", 1, 2, Direction.EITHER, "SYN cookies: 1 when full, 2 always"),
    _tcp("max_syn_backlog", 64, 1 << 20, Direction.UP, "half-open connections kept"),
    _tcp("synack_retries", 0, 10, Direction.DOWN, "SYN-ACKs sent again"),
    Tunable("tcp_timestamps", "net.ipv4.tcp_timestamps", 0, 2, Direction.EITHER, "TCP time stamps"),
    _conntrack("tcp_loose", 0, 1, Direction.DOWN, "0: connections that began untracked are invalid"),
    _conntrack("max", 1024, 1 << 28, Direction.UP, "connections tracked"),
    _conntrack("buckets", 1024, 1 << 26, Direction.UP, "size of its hash"),
    _timeout("tcp_timeout_syn_sent", "after a SYN"),
    _timeout("tcp_timeout_syn_recv", "after a SYN-ACK"),
    _timeout("tcp_timeout_established", "idle connections"),
    _timeout("tcp_timeout_unacknowledged", "connections with data that nobody acknowledges"),
    _timeout("tcp_timeout_fin_wait", "after the first FIN"),
    _timeout("tcp_timeout_close_wait", "after the other side's FIN"),
    _timeout("tcp_timeout_last_ack", "after the last FIN"),
    _timeout("tcp_timeout_time_wait", "after the end"),
    _timeout("tcp_timeout_close", "after a reset"),
    _timeout("udp_timeout", "UDP without an answer"),
    _timeout("udp_timeout_stream", "UDP with answers"),
    _timeout("icmp_timeout", "ICMP"),
    _timeout("icmpv6_timeout", "ICMPv6"),
    _timeout("generic_timeout", "other protocols"),
)
TUNABLES = {item.name: item for item in _ALL}
SHORT_NAMES = {item.short: item for item in _ALL}
