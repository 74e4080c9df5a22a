"""What is known of a kind of rule: each kind says it of itself, so that nobody asks which kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.rules.objects import KernelObjects
from fwtop.rules.surroundings import Surroundings


class Layer(IntEnum):
    """Where packets meet a rule, from the wire on."""

    DRIVER = 0
    TC = 1
    NETDEV = 2  # nftables' ingress
    RAW = 3  # netfilter, before connection tracking
    TRACKED = 4  # netfilter, behind it
    INPUT = 5  # netfilter, on the way to a process or to another host
    NOWHERE = 6  # the rule meets no packets


class RuleKind(Struct, frozen=True):
    """A kind of rule: how its objects are built, and what others must know of it."""

    kind: Kind
    layer: Layer
    build: Callable[[Rule, Surroundings], KernelObjects]
    words: Callable[[Rule], list[str] | None]  # of the command line that makes a rule; None: none can
    own: Mapping[str, str] = {}  # what each of its rules has, and no other: attribute, and whose it is
    optional: tuple[str, ...] = ()  # what its rules alone may have
    missing: Callable[[Rule], str] = lambda _: ""  # what a rule of this kind lacks; "" if nothing
    phrase: Callable[[Rule, str], str] | None = None  # of a rule, given its packets; None: drop, or limit
    drop: str = "drop"  # what it does to packets, in words
    place: str = ""  # where, in words
    is_filter: bool = False  # it drops packets one by one: all that match, or those above a limit
    drops_nothing: bool = False
    untracks: bool = False  # it keeps packets out of connection tracking
    answers: bool = False  # it answers what it takes out
    reads_payload: bool = False
    keeps: Callable[[RateLimit], float] | None = None  # the rate that it keeps of one asked for
    keeper: str = "the kernel"  # who keeps it, in words
    burst: Callable[[RateLimit], int] = lambda limit: limit.burst  # that it lets pass of one asked for
    table: int = 0  # source prefixes that its limit can count: once it is full, it drops all new ones
    takes_lists: bool = False  # it can look up named lists
    too_many: Callable[[Sequence[Prefix]], str | None] | None = None  # why it can't hold so many sources
    is_part: bool = False  # it has a place beside others in a playbook
    has_settings: bool = False  # it changes sysctls, which have no clock in the kernel
    not_measured: str = ""  # what it does, where packets don't show its effect
    on_bridges: str = ""  # what meets the packets that a bridge passes on without netfilter
    evaded: str = ""  # how an attacker evades it, or what else is to be known before it is taken
    probes: Mapping[str, str] = {}  # what of iptables it needs, by name: arguments that doctor tries
    verbs: tuple[str, ...] = ()  # of the command line that make it, by --via if several kinds are of one
    cost_ns: float = 0.0  # CPU time of a packet, measured on a VM with 2 CPUs, Linux 6.18
    bench: str = ""  # the command whose cost `fwtop bench --calibrate` measures; "" for none
    ladder: str = ""  # what it ends, on the ladder of costs; "" if it ends nothing

    @property
    def is_compiled(self) -> bool:
        """Whether its rules become a program of the driver or of tc."""
        return self.layer in (Layer.DRIVER, Layer.TC)

    @property
    def in_netfilter(self) -> bool:
        """Whether netfilter drops its packets, by the kernel's own account."""
        return Layer.NETDEV <= self.layer < Layer.NOWHERE and not (self.drops_nothing or self.answers)
