"""The signed document of a roll-out, what confirms it, and the words in which a machine refuses one.

An operator signs bytes: the JSON of a `Document`, in namespace SIGNED_FOR, as `ssh-keygen -Y sign` does. They
are verified and read as they came, and never encoded again: whoever carries them keeps the text. One
signature covers the whole roll-out: rules, for whom, waves, gates, and the public half of a key that was made
for it, whose `Confirmation`s keep, renew or undo what is on trial (namespace CONFIRMED_FOR). Both are hints
to a courier and law to a machine.

How a courier talks to the guardian, over the socket for programs (scope `fleet`; docs/API.md):

- `FleetDocument`: a document with its signatures. `preview` installs nothing. Without it the rules go in on
  trial for `trial_seconds`, by the guardian's and the kernel's clocks, whoever goes away. The same bytes
  again are answered as the first time, and nothing is done twice; after a reboot, they bring back what was
  kept.
- `FleetConfirm`: a confirmation with its signature.
- `FleetStatus`: who this machine is, and what it knows of its roll-outs.

All three answer with the data of a `Told`. A refusal has one of the words of `Refusal` as its `reason` (or
one of the API's own, such as "refused" by the guard), and its line says what was left untouched and what to
do. A document is written in the lowest schema that expresses it; a machine that is too old answers
"unsupported".

Long lists of sources don't fit into a document: it has their digest (`Sources`), and they come beside it, as
a bundle (fwtop/model/addresses/prefix_list.py) that has the entries of rule N under the name "N".
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, of_plain, to_json

SCHEMA = 3  # the newest that this program understands; 2 has `sources`, `name` and more rules, 3 SWITCH
SIGNED_FOR = "fwtop-fleet"  # namespaces of SSH signatures: one that was made for anything else is none here
CONFIRMED_FOR = "fwtop-fleet-confirm"
MAX_BYTES = 1 << 18  # of a document
MAX_SIGNATURES = 4
MAX_RULES = 64
_RULES_OF_1 = 8
MAX_SOURCES = 5_000_000  # entries of all lists of a document together
MAX_SOURCES_BYTES = 96 << 20
MAX_LABELS = 64  # of a document; each of at most MAX_NAME characters
MAX_NAME = 64
MAX_TRIAL_SECONDS = 3600
CLOCK_SECONDS = 300.0  # that a document may seem to come from the future
EVERYWHERE = "all"  # the label of every machine
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]{0,63}")


class Action(StrEnum):
    """What a document or a confirmation does."""

    RULES = "rules"  # install rules, on trial; of documents only
    SWITCH = "switch"  # have a group of documents' rules drop, count or do nothing, on trial; likewise
    KEEP = "keep"  # confirm the rules of a roll-out
    UNDO = "undo"  # end them, on trial or kept
    RENEW = "renew"  # their trial begins again: who leads still lives; of confirmations only


BEGINNING = frozenset({Action.RULES, Action.SWITCH})  # a roll-out


class Calm(StrEnum):
    """What rules do on a machine that is not attacked."""

    DROP = "drop"
    COUNT = "count"


class Refusal(StrEnum):
    """Why a machine refuses, as the `reason` of its answer."""

    NO_FLEET = "no_fleet"  # this machine belongs to none
    UNSUPPORTED = "unsupported"  # schema: the program here is too old
    UNSIGNED = "unsigned"  # by nobody whom the signers file names now
    FOREIGN = "foreign"  # another fleet's
    NOT_MEANT = "not_meant"  # for other labels
    EXPIRED = "expired"
    CLOCK = "clock"  # from the future: a clock is wrong
    REPLAYED = "replayed"  # an older revision than the highest one here
    CONFLICT = "conflict"  # two documents of one revision, or two roll-outs of one id
    BEYOND = "beyond"  # what this signer may do here
    SECOND = "second"  # a second signature is missing
    FROZEN = "frozen"  # this machine takes nothing but undo
    OVER = "over"  # the roll-out has ended here
    SOURCES = "sources"  # the lists did not come with it, or are not those that were signed


class Wave(Struct, frozen=True, forbid_unknown_fields=True):
    """Machines that come at the same time; those of earlier waves are not counted again."""

    on: tuple[str, ...] = ()  # as in Document; empty: all that the document is for
    most: int | None = None  # machines
    attacked: bool = False  # only those that are attacked
    seconds: float = 5.0  # to measure for, before the gates are looked at


class Gates(Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold after each wave, or it is undone."""

    applied_share: float = 0.95  # of those meant; a silent machine never counts
    most_harmed: int = 0  # machines on which clients fare worse than before


class Sources(Struct, frozen=True, forbid_unknown_fields=True):
    """What names the lists that come beside a document."""

    sha256: str
    size: int  # bytes
    entries: int


class Document(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What operators sign."""

    schema: int = 1
    fleet: str
    revision: int  # each document of a fleet has a higher one
    rollout: str  # its name, once and for all; of KEEP and UNDO: which one
    action: Action
    on: tuple[str, ...]  # labels; each item is one, or several with "+" that a machine must all have
    issued: float  # Unix seconds
    not_after: float  # it begins nothing any more
    rules: tuple[dict[str, Any], ...] = ()  # in the form of docs/API.md
    trial_seconds: int = 30
    count_only: bool = False  # the rules only count
    calm: Calm = Calm.DROP
    waves: tuple[Wave, ...] = ()
    gates: Gates = Gates()
    confirm_key: str = ""  # "ssh-ed25519 AAAA…"; "": only a signer keeps it
    note: str = ""  # what people are told of it
    sources: Sources | UnsetType = UNSET
    name: str | UnsetType = UNSET  # once it is kept, others of this name end: it is a newer version of them
    group: str | UnsetType = UNSET  # of SWITCH: whose rules
    mode: Mode | UnsetType = UNSET  # of SWITCH: what they do from now on


class Confirmation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the roll-out's own key signs."""

    schema: int = 1
    fleet: str
    rollout: str
    document: str  # the digest of the document that it belongs to
    action: Action  # KEEP, UNDO or RENEW
    number: int  # from 1, higher each time: a replayed one does nothing


class Sealed(Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a document or a confirmation, and its signatures in SSH's armour: stored and sent so."""

    text: str
    signatures: tuple[str, ...]


class Stage(StrEnum):
    """How far a roll-out is on a machine."""

    PREVIEWED = "previewed"
    TRIAL = "trial"
    KEPT = "kept"
    REVERTED = "reverted"  # nobody kept it, or the guard refused a part
    UNDONE = "undone"  # by an operator, of the fleet or here
    EXPIRED = "expired"


class RolloutTold(Struct, frozen=True):
    """A roll-out as a machine knows it."""

    rollout: str
    revision: int
    document: str  # digest
    stage: Stage
    signers: tuple[str, ...]
    rules: tuple[str, ...] = ()  # their numbers on this machine
    counting: bool = False
    acting: bool = False  # all of them are in force now
    confirm_by: float | None = None  # of a trial: Unix seconds
    why: str = ""  # it ended


class Told(Struct, frozen=True):
    """The data of a machine's answer."""

    fleet: str
    machine: str
    labels: tuple[str, ...]
    revision: int  # the highest one here
    schema: int  # the newest one that it understands
    clock: float  # Unix seconds
    log: str  # digest of the last line of its log
    frozen: bool = False
    rollouts: tuple[RolloutTold, ...] = ()  # the one that was asked for; of FleetStatus, all that are known
    plans: tuple[dict[str, Any], ...] = ()  # of a preview: for each rule what `plan` answers
    warnings: tuple[str, ...] = ()


class UnsupportedError(FwtopError):
    """A document that a newer program wrote."""

    def __init__(self, schema: object) -> None:
        super().__init__(
            f"the document has schema {safe_text(schema, limit=20)}, fwtop here understands up to {SCHEMA}; "
            "nothing was changed; upgrade fwtop on this machine",
            reason=Refusal.UNSUPPORTED,
            field="schema",
        )


def encode(value: Document | Confirmation) -> bytes:
    """Return the bytes to be signed."""
    return to_json(value)


def digest(text: bytes) -> str:
    """Return what names a document's exact bytes."""
    return hashlib.sha256(text).hexdigest()


def read_document(text: bytes) -> Document:
    """Read the bytes of a document; raises FwtopError: UnsupportedError for one of a newer schema."""
    if len(text) > MAX_BYTES:
        raise _wrong(f"it has {len(text):,} bytes, at most {MAX_BYTES:,}")
    found: Document = _read(Document, text)
    _check_names(found.fleet, found.rollout)
    if not 1 <= found.revision < 1 << 53:
        raise _wrong("revision must be a whole number from 1", "revision")
    if found.action is Action.RENEW:
        raise _wrong("action must be rules, switch, keep or undo", "action")
    if (found.action is Action.RULES) != bool(found.rules) or len(found.rules) > MAX_RULES:
        raise _wrong(f"rules: action rules has 1 to {MAX_RULES}, others none", "rules")
    if not 1 <= found.trial_seconds <= MAX_TRIAL_SECONDS:
        raise _wrong(f"trial_seconds must be from 1 to {MAX_TRIAL_SECONDS}", "trial_seconds")
    if not 1 <= len(found.on) <= MAX_LABELS or any(not _are_labels(item) for item in found.on):
        raise _wrong(f"on must be 1 to {MAX_LABELS} labels, as web or web+eu", "on")
    if found.confirm_key and not re.fullmatch(r"ssh-ed25519 [A-Za-z0-9+/]{68}", found.confirm_key):
        raise _wrong("confirm_key must be a public key, ssh-ed25519 AAAA…", "confirm_key")
    newer = (found.sources, found.name) != (UNSET, UNSET) or len(found.rules) > _RULES_OF_1
    if newer and found.schema < 2:
        raise _wrong(f"sources, name and more than {_RULES_OF_1} rules take schema 2", "schema")
    if any(isinstance(name, str) and not is_name(name) for name in (found.name, found.group)):
        raise _wrong("name and group must be names as a roll-out's", "name")
    switches, given = found.action is Action.SWITCH, {found.group is not UNSET, found.mode is not UNSET}
    if given != {switches} or (switches and found.schema < 3):
        raise _wrong("action switch has group and mode, and takes schema 3; others have neither", "group")
    if isinstance(about := found.sources, Sources) and not (
        re.fullmatch("[0-9a-f]{64}", about.sha256)
        and 0 < about.size <= MAX_SOURCES_BYTES
        and 0 < about.entries <= MAX_SOURCES
    ):
        raise _wrong(f"sources have a SHA-256, and at most {MAX_SOURCES:,} entries", "sources")
    return found


def read_confirmation(text: bytes) -> Confirmation:
    """Read the bytes of a confirmation; raises FwtopError as `read_document`."""
    if len(text) > MAX_BYTES:
        raise _wrong(f"it has {len(text):,} bytes, at most {MAX_BYTES:,}")
    found: Confirmation = _read(Confirmation, text)
    _check_names(found.fleet, found.rollout)
    if found.action in BEGINNING or found.number < 1:
        raise _wrong("action must be keep, undo or renew, and number at least 1", "action")
    return found


def is_meant(on: tuple[str, ...], labels: frozenset[str]) -> bool:
    """Return whether a document is for a machine with these labels, its name and EVERYWHERE among them."""
    return any(labels.issuperset(item.split("+")) for item in on)


def is_name(text: str) -> bool:
    """Return whether a text may name a fleet, a machine, a roll-out or a label."""
    return _NAME.fullmatch(text) is not None


def _are_labels(item: str) -> bool:
    return all(map(is_name, item.split("+")))


def _check_names(fleet: str, rollout: str) -> None:
    if not is_name(fleet) or not is_name(rollout):
        raise _wrong(f"fleet and rollout must be names of up to {MAX_NAME} letters, digits and '_.@:-'")


def _read(cls: Any, text: bytes) -> Any:  # noqa: ANN401 - Document or Confirmation
    try:
        plain = of_json(dict[str, Any], text)
        schema = plain.get("schema")
        if type(schema) is not int or schema < 1:
            raise _wrong("schema must be a whole number from 1", "schema")
        if schema > SCHEMA:
            raise UnsupportedError(schema)
        return of_plain(cls, plain)
    except ValueError as error:
        raise _wrong(safe_text(error, limit=200), getattr(error, "field", None)) from None


def _wrong(said: str, field: str | None = None) -> FwtopError:
    return FwtopError(f"not a fleet document: {said}; nothing was changed", 2, field=field)
