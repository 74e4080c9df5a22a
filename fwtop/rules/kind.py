"""What is known of a kind of rule, the kernel objects of a rule, and what these depend on beside it.

Each kind says it of itself, so that nobody asks which kind it is. It is a function from a Rule to
KernelObjects: planning, installing, removing and counting are written once, and every kind can be tested
without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting
from fwtop.model.traffic.counters import NETFILTER_DROP, TC_INGRESS


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
    brief: Callable[[Rule, str], str] | None = None  # the phrase in a line of a list, if it is another
    drop: str = "drop"  # what it does to packets, in words
    elsewhere: str = ""  # what fwtop does with it, in words, where no command of iptables is meant
    place: str = ""  # where, in words
    is_compiled: bool = False  # its rules become a program of the driver or of tc
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
    has_no_clock: bool = False  # in the kernel, as sysctls: the guardian ends it, or the next one
    uncounted: Callable[[Rule], str] = lambda _: ""  # why a rule can't only count; "" if it can
    fixed: str = ""  # why its rules can't be changed in place; "" if they can
    not_measured: str = ""  # what it does, where packets don't show its effect
    on_bridges: str = ""  # what meets the packets that a bridge passes on without netfilter
    evaded: str = ""  # how an attacker evades it, or what else is to be known before it is taken
    probes: Mapping[str, str] = {}  # what of iptables it needs, by name: arguments that doctor tries
    verbs: tuple[str, ...] = ()  # of the command line that make it, by --via if several kinds are of one
    cost_ns: float = 0.0  # CPU time of a packet, measured on a VM with 2 CPUs, Linux 6.18
    bench: str = ""  # the command whose cost `fwtop bench --calibrate` measures; "" for none
    ladder: str = ""  # what it ends, on the ladder of costs; "" if it ends nothing

    @property
    def drop_reason(self) -> str:
        """The kernel's reason for what its rules drop; "" if they drop nothing. What XDP drops has none."""
        if self.drops_nothing or self.layer is Layer.NOWHERE:
            return ""
        return NETFILTER_DROP if self.layer > Layer.TC else TC_INGRESS  # where XDP can't run, tc does


class Machine(Struct, frozen=True):
    """What can be asked of a machine; by default nothing is known, as of others that a policy is for."""

    memory_bytes: Callable[[], int] = lambda: 0  # 0: unknown
    tcp_peers: Callable[[int], Sequence[tuple[Prefix, int]]] = lambda _: ()  # of a local port, now
    # Of a family, a local port, at most so many: who talks with a UDP service
    udp_peers: Callable[[int, int, int], Sequence[tuple[str, int]]] = lambda *_: ()
    mtu: Callable[[], int] = lambda: 1500  # the smallest of the interfaces that receive, bytes
    window_scale: Callable[[], int] = lambda: 7  # that a listener announces; 7: Linux with its defaults
    without_gro: Callable[[], Sequence[str]] = tuple  # interfaces without GRO, which verifies checksums
    takes_stamps: Callable[[], bool] = lambda: True  # whether the SYN proxy can pass time stamps through


class Surroundings(Struct, frozen=True):
    """The allow-list, named lists, other rules and the machine; by default there are none."""

    exceptions: tuple[Prefix, ...] = ()  # prefixes of the allow-list that this rule spares
    known: tuple[Prefix, ...] = ()  # all prefixes of the allow-list, in whatever role
    lists: Mapping[str, Sequence[Prefix]] = {}  # of a protected port: what its access lists hold
    higher: frozenset[str] = frozenset()  # of a protected port: the rules that decide before it
    machine: Machine = Machine()


NONE = Surroundings()


PREROUTING = "PREROUTING"
OUTPUT = "OUTPUT"
BESIDE = "st"  # role of the sets that lines in table filter ask
# A hook's chain first asks the lines that spare listed addresses by themselves, sends packets of listed
# addresses to the chain of roles, and all others on to the other rules.
HOOK_CHAINS = {PREROUTING: "FWTOP", OUTPUT: "FWTOP-OUT"}
SOURCE_CHAINS = {PREROUTING: "FWTOP-SOURCES"}  # of lines whose set matches no source of the allow-list
ROLE_CHAINS = {PREROUTING: "FWTOP-ROLES", OUTPUT: "FWTOP-OUT-ROLES"}
LISTED_CHAINS = {PREROUTING: "FWTOP-LISTED"}  # of the same rules: listed sources, out of role
RULE_CHAINS = {PREROUTING: "FWTOP-RULES", OUTPUT: "FWTOP-OUT-RULES"}
PORT_CHAINS = {PREROUTING: "FWTOP-PORTS"}  # of protected ports, in order of priority; there with the first
_KINDS = (HOOK_CHAINS, SOURCE_CHAINS, ROLE_CHAINS, LISTED_CHAINS, RULE_CHAINS, PORT_CHAINS)
OWN_CHAINS = {hook: tuple(kind[hook] for kind in _KINDS if hook in kind) for hook in HOOK_CHAINS}


class SetSpec(Struct, frozen=True):
    """An ipset hash:net of this rule; every element of a timed one gets the rule's timeout."""

    name: str
    family: int
    elements: Sequence[Prefix]
    exceptions: tuple[Prefix, ...] = ()  # `nomatch` elements: inside a listed prefix, but not meant
    timed: bool = True  # False: a long list, whose lines also match an enable set
    shared: bool = False  # a named list's, which stays when the rule ends and others use it
    counted: bool = False  # each element counts what it matched
    seeds: Callable[[], Sequence[str]] | None = None  # of a set of addresses and ports that packets fill


class ChainLine(Struct, frozen=True):
    """One line of a chain: arguments of iptables. One of its sets carries the rule's id in its name."""

    family: int
    match: tuple[str, ...]
    target: tuple[str, ...]
    hook: str = PREROUTING
    unlisted: bool = False  # only packets match whose source is not on the allow-list
    listed: bool = False  # only those match whose source is on it
    behind: frozenset[str] | None = None  # of a protected port: the rules whose lines come before it

    @property
    def chain(self) -> str:
        """The chain that it is in."""
        if self.behind is not None:
            return PORT_CHAINS[self.hook]
        if self.listed:
            return LISTED_CHAINS[self.hook]
        return (SOURCE_CHAINS if self.unlisted else RULE_CHAINS)[self.hook]


class KernelObjects(Struct, frozen=True):
    """Everything that a rule puts into the kernel."""

    sets: tuple[SetSpec, ...]
    lines: tuple[ChainLine, ...]
    notes: tuple[str, ...] = ()  # costs and side effects, for the preview
    settings: tuple[Setting, ...] = ()  # sysctls
    needs: tuple[Setting, ...] = ()  # sysctls that must be so; changed only where they are not
    untracked: tuple[Match, ...] = ()  # services whose rules on states get stateless lines beside them
    instead: Struct | None = None  # of sets and lines: what one mechanism knows by its type as its own

    @property
    def in_raw(self) -> bool:
        """Whether packets meet all of it in table raw."""
        return self.instead is None
