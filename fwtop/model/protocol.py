"""What clients (console, command line, programs: docs/API.md) may ask of the guardian: a class for each.

How requests and answers become messages is in messages.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from fwtop.model.rule import Mode

MAX_SECONDS = 3600.0  # of a request's time limit
DEFAULT_CONFIRM_SECONDS = 30
API_VERSION = 1  # of what docs/API.md promises to programs
PROGRAM = "program"  # their role
SCOPES = (
    "read",
    "lists",
    "rules",
    "policies",
    "fleet",
)  # what they may be allowed, in [access] of guard.toml
MAX_PAGE = 10_000  # entries of a list in one answer
# The guardian gives up before its client does, and its programs before the guardian.
SHORT_SECONDS = 60.0
LONG_SECONDS = 150.0  # a list of a million prefixes, or a compiler on a busy machine
POLICY_SECONDS = 900.0  # all that a policy changes, one after the other


class Verb(Struct, frozen=True, forbid_unknown_fields=True):
    """What the guardian knows of a request by its class alone; what a class doesn't grant is refused."""

    scope: ClassVar[str | None] = None  # that a program needs; None: it is not for programs
    for_console: ClassVar[bool] = False  # a screen may ask for it (console_scope.py says how far)
    command: ClassVar[str] = ""  # of the operator, which does what a screen may not
    changes: ClassVar[bool] = True  # not for those who only read; what `status` told is out of date after it
    quick: ClassVar[bool] = False  # the worker serves it between the batches of a slow one
    seconds: ClassVar[float] = SHORT_SECONDS  # that a client waits for the answer

    @classmethod
    def verb(cls) -> str:
        """Return the request's name in a message."""
        return cls.__name__.lower()


class Reading(Verb, frozen=True):
    """A request that changes nothing, of whoever may read."""

    scope = "read"
    changes = False


class Attending(Verb, frozen=True):
    """A request of root's clients about their connection and what they watch, which changes no rule."""

    for_console = True
    changes = False


class Hello(Attending, frozen=True):
    """The first message of a client. A `console` client's provisional rules end with its connection."""

    role: str  # "console", "cli", "program"
    build: str = ""  # hash of the installed program; a guardian of another build hands over and exits
    readonly: bool = False
    version: int = 0  # of a program: the API_VERSION that it was written for, as it knows no builds
    versions: tuple[int, int] | None = None  # or the first and the last that it understands
    # Whose program root's server of the stream (fwtop/api) speaks for; of root's socket only
    uid: int | None = None
    groups: tuple[int, ...] = ()


class Watch(Attending, frozen=True):
    """Attach the observers and return their descriptors."""

    interfaces: tuple[str, ...] = ()  # empty: those with a default route


class Plan(Reading, frozen=True):
    """Return what installing a rule would run and whether the guard permits it."""

    for_console = True
    seconds = LONG_SECONDS
    rule: dict[str, Any]
    attached: bool = False  # the sources are in a descriptor beside the message (prefix_list.py)
    follows: bool = False  # it is to be installed together with the rules planned just before


class Apply(Verb, frozen=True):
    """Install a rule, provisional for `confirm_seconds`; 0: confirmed."""

    scope = "rules"
    for_console = True
    seconds = LONG_SECONDS
    rule: dict[str, Any]
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    force: bool = False  # the operator confirmed an overly broad rule by typing
    attached: bool = False  # as in Plan


class Keep(Verb, frozen=True):
    """Confirm a provisional rule, or renew a confirmed one's time to live."""

    scope = "rules"
    for_console = True
    command = "fwtop keep"
    quick = True
    id: str
    ttl_seconds: int | None = None


class RuleMode(Verb, frozen=True):
    """Have active rules drop, provisionally for `confirm_seconds` (0: confirmed), or only count."""

    scope = "rules"
    for_console = True
    command = "fwtop mode"
    seconds = LONG_SECONDS
    ids: tuple[str, ...]
    mode: Mode
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    force: bool = False  # as in Apply


class RuleChange(Verb, frozen=True):
    """Have an active rule match other packets or keep another rate, on the same objects and counters.

    On trial for `confirm_seconds` (0: confirmed): then it is what it was before unless it is kept.
    """

    scope = "rules"
    for_console = True
    command = "fwtop change"
    seconds = LONG_SECONDS
    id: str
    rule: dict[str, Any]  # as it is to be
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    force: bool = False  # as in Apply
    attached: bool = False  # as in Plan
    if_stamp: int | None = None  # change it only if this is still its stamp


class Renew(Verb, frozen=True):
    """Have the trial of a rule last for so many seconds from now; all of it at most an hour."""

    scope = "rules"
    command = "fwtop keep"
    quick = True
    id: str
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS


class Repair(Verb, frozen=True):
    """Reinstall what is missing of an active rule; its time to live is unchanged."""

    scope = "rules"
    for_console = True
    quick = True
    seconds = LONG_SECONDS
    id: str


class Undo(Verb, frozen=True):
    """Remove rules by id, or all of them."""

    scope = "rules"
    for_console = True
    command = "fwtop undo"
    quick = True
    ids: tuple[str, ...] = ()
    all: bool = False
    why: str = ""  # for who asks later what became of them


class Status(Reading, frozen=True):
    """List rules with their counters, the allow-list and the guardian's state."""

    for_console = True
    quick = True
    finished: bool = False  # also ended rules
    allow: bool = True  # also the allow-list, which may be long


class Connect(Attending, frozen=True):
    """Open another connection for the same client; the answer carries its descriptor."""


class Changes(Reading, frozen=True):
    """Tell what happened to rules and lists since a number (data["events"]), perhaps waiting for something.

    data["log"] names this guardian's log, another one after each start; data["first"] is the number of the
    oldest event that it still has, data["last"] that of the newest. An event has `seq`, `at` (Unix seconds),
    `event` and what is known of it. data["attacks"] are those that go on, data["summary"] is how the machine
    fares, as the last console that told it saw it (`Summary`, and `age` in seconds; null: nobody watches).
    """

    command = "fwtop events"
    since: int = 0
    wait_seconds: float = 0.0  # at most MAX_WAIT_SECONDS


MAX_WAIT_SECONDS = 30.0


class Why(Reading, frozen=True):
    """Explain in sentences (data["sentences"]) what a rule matches or why it doesn't match."""

    for_console = True
    id: str


class RuleRead(Reading, frozen=True):
    """Return a rule with all of its sources (data["rule"]), of which `status` shows the first.

    A long list comes in a sealed memory file beside the answer, and is empty in the rule then.
    """

    for_console = True
    seconds = LONG_SECONDS
    id: str


class SeenAttack(Struct, frozen=True, forbid_unknown_fields=True):
    """An attack as a console tells of it; `ended` is None while it goes on. Times are Unix seconds."""

    id: int  # among those of the console
    kind: str
    title: str
    severity: str
    target: str
    sources: str
    since: float
    ended: float | None
    pps: float
    bps: float


class Seen(Attending, frozen=True):
    """Tell those who follow (`changes`) of attacks that began or ended."""

    attacks: tuple[SeenAttack, ...]


class Foreseen(Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule would do to the traffic that a console sees; shares are 0 to 1."""

    pps: float  # that it would drop
    of_pps: float  # that arrived in the same time
    attack: str  # which it is against; "": none
    attack_share: float
    normal_share: float  # of what seems to be no attack


class Summary(Attending, frozen=True):
    """Tell those who follow (`changes`) in short how this machine fares; rates are of a second.

    data["foresee"] has rules, by key, of which `foreseen` of another one, at once, should tell.
    """

    at: float  # Unix seconds
    verdict: str  # as on the screen: "CALM", "UNPROTECTED", …
    arrives_pps: float
    arrives_bps: float
    reaches_pps: float  # services
    rules_pps: float  # fwtop's rules drop
    clients: float | None = None  # connections that they make; None: it isn't known
    clients_before: float | None = None  # in calm, before the attack
    harm: str = ""  # what a rule surely costs clients
    foreseen: dict[str, Foreseen] = {}


MAX_CLIENTS = 4_096


class KnownClients(Attending, frozen=True):
    """Tell who the clients of this host's services have long been: rules are measured on them.

    Each with its address, protocol and port; at most MAX_CLIENTS, those known longest.
    """

    quick = True
    clients: tuple[tuple[str, int, int], ...]


class Symbols(Attending, frozen=True):
    """Name the kernel functions at this client's drop locations (data["names"], by index; "": unknown)."""


MAX_TRACKED = 128


class Tracked(Attending, frozen=True):
    """Tell of TCP connections whether both ends have answered (data["assured"], by index).

    Each as its first packet had it: source, its port, destination, its port; at most MAX_TRACKED. Whoever
    forges a source can't make connection tracking mark an entry so (IPS_ASSURED).
    """

    flows: tuple[tuple[str, int, str, int], ...]


class Rescan(Attending, frozen=True):
    """Find the watched interfaces again, after they or what is stacked on them changed."""


class Survey(Reading, frozen=True):
    """Tell what the guardian last saw around the rules; empty before its first reading.

    data["services"]: as `Service`, and in short as data["listeners"]: [protocol, port, process];
    data["asks"]: those of others that this host uses, likewise; data["answering"]: [protocol, address, port]
    of what was seen to answer ("", address, 0: that it is in use); data["rings"]: [interface, size, most];
    data["queues"]: [interface, queue, packets, drops]; data["packet_sockets"]: those of others, as
    `PacketSocket`;
    data["chains"]: [stage, name, whether its policy drops].
    """

    for_console = True


LIST_ACTIONS = ("create", "add", "remove", "replace", "delete")


class ListChange(Verb, frozen=True):
    """Change a named list, in whole or not at all; the answer counts entries (data["added"], …)."""

    scope = "lists"
    command = "fwtop list"
    seconds = LONG_SECONDS
    name: str
    action: str  # one of LIST_ACTIONS
    ttl_seconds: int | None = None  # of the entries; None: they stay
    force: bool = False  # the operator insists, although a rule on the list becomes overly broad
    attached: bool = False  # the entries are in a descriptor beside the message, as in Plan
    entries: tuple[str, ...] = ()  # or here, as text
    if_stamp: int | None = None  # change it only if this is still its stamp


class ListShow(Reading, frozen=True):
    """Describe the named lists (data["lists"]), or one of them with its busiest entries."""

    command = "fwtop list"
    quick = True
    name: str = ""


class ListTest(Reading, frozen=True):
    """Tell which entry of a list holds an address or prefix (data["entry"], None for none)."""

    command = "fwtop list"
    quick = True
    name: str
    entry: str


class ListRead(Reading, frozen=True):
    """Return all entries of a list: a sealed memory file comes with the answer.

    Where some end, another one comes: the seconds that each has left, as doubles; 0 for those that stay.
    With a `count` up to so many are answered as text from `first` on, as far as MAX_PAGE: data["entries"],
    each with its seconds or null; data["total"]; data["stamp"], another one after each change. With
    `counters` each has the packets that rules counted of it, too, or null.
    """

    for_console = True
    command = "fwtop list"
    seconds = LONG_SECONDS
    name: str
    first: int = 0
    count: int | None = None
    counters: bool = False


class Rules(Reading, frozen=True):
    """Tell every rule and set on the machine, as last read; data["ruleset"] is null before that.

    The longest rule sets are cut to those that matter most.
    """

    for_console = True


POLICY_READS = ("check", "diff", "plan", "history", "show", "export")
POLICY_CHANGES = ("apply", "rollback", "keep", "renew", "undo")
POLICY_FORMATS = ("nft", "iptables", "sh")  # of an export
MAX_POLICY = 1 << 18  # bytes of a policy's text in a request


class PolicyRead(Reading, frozen=True):
    """Tell of a policy: whether its text is right, what it would change, what was kept before, and its text.

    `export` answers with a memory file for each of data["files"].
    """

    command = "fwtop policy"
    seconds = POLICY_SECONDS
    action: str  # one of POLICY_READS
    text: str = ""
    format: str = POLICY_FORMATS[0]
    version: int | None = None  # with show; None: the newest
    attached: bool = False  # lists come in a descriptor beside the message (model/addresses/prefix_list.py)
    lists: dict[str, tuple[str, ...]] = {}  # or here, by name, as text


class PolicyChange(Verb, frozen=True):
    """Try a policy, or an older version; keep, renew or take out again what this connection tries."""

    scope = "policies"
    command = "fwtop policy"
    seconds = POLICY_SECONDS
    action: str  # one of POLICY_CHANGES
    text: str = ""
    version: int | None = None  # with rollback; None: the one before
    confirm_seconds: int = DEFAULT_CONFIRM_SECONDS  # 0: keep it at once
    attached: bool = False  # as in PolicyRead
    lists: dict[str, tuple[str, ...]] = {}


class FleetDocument(Verb, frozen=True):
    """Carry out a document that operators signed: whoever delivers it decides nothing.

    data: `Told` (fwtop/fleet/document.py).
    """

    scope = "fleet"
    command = "fwtop fleet deliver"
    seconds = LONG_SECONDS
    text: str  # exactly what was signed
    signatures: tuple[str, ...]  # in SSH's armour
    preview: bool = False  # verify it and plan its rules; install nothing
    calm: bool = False  # this machine is not attacked: what is to count then counts
    attached: bool = False  # its lists of sources are in a descriptor beside the message


class FleetConfirm(Verb, frozen=True):
    """Keep, undo or renew a roll-out, as the key that was made for it signed; data: `Told`."""

    scope = "fleet"
    command = "fwtop fleet deliver"
    quick = True
    text: str
    signature: str


class FleetStatus(Verb, frozen=True):
    """Tell who this machine is in its fleet, and what became of roll-outs here; data: `Told`."""

    scope = "fleet"
    command = "fwtop fleet"
    changes = False
    quick = True


Request = (
    Hello | Watch | Plan | Apply | Keep | Repair | Undo | Status | Why | Symbols | Rescan | Survey | Connect
    | Changes | ListChange | ListShow | ListTest | ListRead | Rules | RuleRead | RuleMode | RuleChange | Renew
    | PolicyRead | PolicyChange | Seen | KnownClients | FleetDocument | FleetConfirm | FleetStatus | Summary
    | Tracked
)  # fmt: skip
