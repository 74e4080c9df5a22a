"""Signed documents carried out: by the same plan, guard, trial and undo as any request, for their signers.

Whoever delivers a document decides nothing: it is verified here, against root's files, and what it installs
is on trial by this guardian's clock until the roll-out's own key, or a signer, keeps it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.fleet.document import (
    BEGINNING,
    CONFIRMED_FOR,
    MAX_BYTES,
    SCHEMA,
    SIGNED_FOR,
    Action,
    Confirmation,
    Document,
    Refusal,
    RolloutTold,
    Sources,
    Stage,
    Told,
    digest,
    read_confirmation,
    read_document,
)
from fwtop.guardian.fleet import permission
from fwtop.guardian.fleet.membership import Membership, read_membership
from fwtop.guardian.fleet.permission import Newest
from fwtop.guardian.fleet.record import OPEN, Known, Recorder, Rollout
from fwtop.guardian.fleet.rollouts import Order, Rollouts, over
from fwtop.guardian.ownership import single_threaded
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import map_sealed, read_bundle
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import FleetConfirm, FleetDocument, FleetStatus
from fwtop.model.rule import Mode, Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import of_plain, plain
from fwtop.rules.words import with_mode

# What a courier may bring: so much at once, and then one each so often (seconds). Each costs a process.
_BROUGHT = 40, 1.0
_LOGGED = 100, 60.0  # lines of the log on what changed nothing, likewise


class Patience:
    """Lets so much happen at once, and from then on one thing each so often."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self._at_once, self._seconds = at_once, seconds
        self._spent, self._at = 0.0, time.monotonic()

    def is_over(self) -> bool:
        """Count one thing more, and return whether it is one too many."""
        now = time.monotonic()
        self._spent = max(0.0, self._spent - (now - self._at) / self._seconds)
        self._at = now
        if self._spent + 1 > self._at_once:
            return True
        self._spent += 1
        return False


@single_threaded
class Authority:
    """Owned by the worker's thread."""

    def __init__(
        self,
        rollouts: Rollouts,
        plan: Callable[..., dict[str, Any]],
        foresee: Callable[[str, dict[str, Any]], dict[str, Any] | None],
        recorder: Recorder,
        directory: Path,
    ) -> None:
        """Take what carries roll-outs out, plans a rule, foresees what it stops, remembers; root's files."""
        self._rollouts = rollouts
        self._plan, self._foresee = plan, foresee
        self._previewed = ""  # the document that the log says so of last
        self._recorder = recorder
        self._directory = directory
        self._brought, self._logged = Patience(*_BROUGHT), Patience(*_LOGGED)
        self._left_out = 0  # events that are not in the log

    def carry_out(
        self, request: FleetDocument | FleetConfirm | FleetStatus, courier: str, attached: int | None
    ) -> dict[str, Any]:
        """Carry out a request and return the data of a `Told`; raises FwtopError.

        `courier` says who delivers it, "" for root; `attached` is the descriptor of the lists beside it.
        """
        members = read_membership(self._directory)
        self._follow(self._recorder.known)
        if isinstance(request, FleetStatus):
            return self._told(members, *self._recorder.known.rollouts.values())
        text = request.text.encode()
        about: dict[str, object] = {"document": digest(text)}
        try:
            if courier and self._brought.is_over():
                line = "too much was brought lately: try again later; nothing was changed"
                raise FwtopError(line, reason="busy", retryable=True)
            if len(text) > MAX_BYTES:
                raise FwtopError(f"a document has at most {MAX_BYTES:,} bytes; nothing was changed", 2)
            if isinstance(request, FleetConfirm):
                return self._confirm(members, text, request.signature, about)
            return self._document(members, text, request, about, attached)
        except FwtopError as error:
            about |= {"courier": courier or "root", "reason": error.reason, "why": str(error)}
            self._log_idle("refused", about)
            raise

    def note(self) -> None:
        """Record what became of roll-outs that no request of the fleet ended: by a clock, or by hand."""
        if self._recorder.is_read:
            self._follow(self._recorder.known)

    def finish(self) -> None:
        """Wait for what is being recorded."""
        self._recorder.finish()

    def _follow(self, known: Known) -> None:
        for one in known.rollouts.values():
            if self._rollouts.is_of_now(one):
                self._rollouts.follow(one)

    def _document(
        self,
        members: Membership,
        text: bytes,
        request: FleetDocument,
        about: dict[str, object],
        attached: int | None,
    ) -> dict[str, Any]:
        """Verify a document and carry it out, as far as it was not yet; `about` gets what is known of it."""
        order = self._verified(members, text, request)
        document = order.document
        about |= order.about()
        permission.check_place(document, members.machine)
        former = self._recorder.known.rollouts.get(document.rollout)
        if document.action not in BEGINNING:
            return self._decide(members, order, former)
        if former is not None and former.document != order.digest:
            line = f"another document began roll-out {document.rollout}; nothing was changed"
            raise FwtopError(f"{line}; give each its own name", reason=Refusal.CONFLICT)
        if former is None:
            self._check_order(order)
        elif former.stage not in OPEN:
            raise over(former)
        elif self._rollouts.is_installed(former) and not request.preview:
            return self._again(members, order, former)
        elif former.until and former.until < time.time() + 1:
            raise over(replace(former, stage=Stage.EXPIRED, why="its time is over"))
        order = replace(order, sources=_sources(document, attached))
        if isinstance(document.mode, Mode):
            return self._switch(members, order, former, document.mode, preview=request.preview)
        given = order.rules(former.until if former is not None else 0.0)
        rules, older = self._rollouts.read(order, given), self._rollouts.named(order)
        self._check(members, order, rules)
        for other in older:
            permission.check_target(order.signers, members.restrictions, other.signers)
        given = self._rollouts.in_place(older, given, rules)
        if request.preview:
            return self._preview(members, order, given)
        one, warnings = self._rollouts.install(order, given, former)
        return self._told(members, one, warnings=warnings)

    def _switch(
        self, members: Membership, order: Order, former: Rollout | None, mode: Mode, *, preview: bool
    ) -> dict[str, Any]:
        """Have the rules of a group drop, count or do nothing, on trial; raises FwtopError."""
        rules = self._rollouts.of_group(order.document)
        switched = [with_mode(rule, mode) for rule in rules]
        ids = [rule.id for rule in rules]
        self._check(members, order, switched, ids)
        for maker in self._rollouts.makers_of(rules):
            permission.check_target(order.signers, members.restrictions, maker.signers)
        if preview:
            sources = {str(number): rule.match.sources for number, rule in enumerate(rules)}
            bare = [
                replace(rule, replaces="", match=replace(rule.match, sources=())).to_dict()
                for rule in switched
            ]
            return self._preview(members, replace(order, sources=sources), bare, ids)
        one, warnings = self._rollouts.switch(order, rules, mode, former)
        return self._told(members, one, warnings=warnings)

    def _verified(self, members: Membership, text: bytes, request: FleetDocument) -> Order:
        from fwtop.guardian.fleet.verify import Authorities, verified  # a guardian without a fleet needs none

        found = verified(
            text, request.signatures, SIGNED_FOR, Authorities(members.signers, members.revoked),
            lambda signed: plain(read_document(signed)),
        )  # fmt: skip
        return Order(of_plain(Document, found.value), digest(text), found.principals, request.calm)

    def _check_order(self, order: Order) -> None:
        newest = self._recorder.known.newest.get(order.document.fleet, Newest())
        permission.check_order(order.document, order.digest, newest)

    def _check(
        self, members: Membership, order: Order, rules: Sequence[Rule], but: Sequence[str] = ()
    ) -> None:
        """Raise FwtopError unless these rules may be installed now for these signers."""
        document, machine = order.document, members.machine
        permission.check_time(document, time.time())
        permission.check_frozen(document, machine)
        permission.check_signers(document, rules, order.signers, members.restrictions)
        permission.check_ceiling(machine, rules, self._rollouts.rules_of_fleet(but))

    def _preview(
        self,
        members: Membership,
        order: Order,
        given: Sequence[dict[str, Any]],
        changed: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what rules would do, or active ones (`changed`) as these."""
        document, plans = order.document, []
        for number, rule in enumerate(given):
            sources = order.sources_of(number)  # a long list is not replayed on what is seen
            told = None if sources and not changed else self._foresee(f"{order.digest}.{number}", rule)
            was = changed[number] if changed else ""
            plans.append(self._plan(rule, sources, was=was) | {"foreseen": told})
        if order.digest != self._previewed:
            self._log_idle("previewed", order.about())
            self._previewed = order.digest
        one = RolloutTold(
            document.rollout, document.revision, order.digest, Stage.PREVIEWED, order.signers,
            counting=order.counts,
        )  # fmt: skip
        return self._data(members, (one,), tuple(plans))

    def _again(self, members: Membership, order: Order, one: Rollout) -> dict[str, Any]:
        """Answer a document that is in force; what only counts here drops now, if it is to, on trial."""
        if one.counting and not order.counts:
            self._check(members, order, self._rollouts.dropping(one), one.rules)
            one = self._rollouts.drop(one)
        return self._told(members, one)

    def _decide(self, members: Membership, order: Order, one: Rollout | None) -> dict[str, Any]:
        """Keep or undo a roll-out as a signer says."""
        document, known = order.document, self._recorder.known
        self._check_order(order)
        permission.check_time(document, time.time())
        permission.check_frozen(document, members.machine)
        former = one.signers if one is not None and one.fleet == document.fleet else ()
        permission.check_target(order.signers, members.restrictions, former)
        if known.newest.get(document.fleet) != order.newest:
            event = {"event": "taken", **order.about(), "action": document.action.value}
            self._recorder.write(known.with_newest(document.fleet, order.newest), event)
        if one is not None:
            return self._told(
                members, self._rollouts.decide(one, document.action, " and ".join(order.signers))
            )
        if document.action is Action.KEEP:
            line = f"this machine knows no roll-out {document.rollout}; nothing was changed"
            raise FwtopError(f"{line}; deliver its document first", reason=Refusal.OVER)
        return self._told(members)

    def _confirm(
        self, members: Membership, text: bytes, signature: str, about: dict[str, object]
    ) -> dict[str, Any]:
        """Keep, undo or renew a roll-out as its own key says."""
        one, said = self._verified_confirmation(text, signature)
        about |= {"rollout": one.rollout, "revision": one.revision, "action": said.action.value}
        fleet = members.machine.fleet
        if (said.rollout, said.fleet, said.document, one.fleet) != (one.rollout, fleet, one.document, fleet):
            line = f"the confirmation is of another document than {one.rollout} here, or of another fleet"
            raise FwtopError(f"{line}; nothing was changed", reason=Refusal.CONFLICT)
        if said.number < one.number or (said.number == one.number and said.action is Action.RENEW):
            line = f"confirmation {said.number} of {one.rollout} comes after number {one.number}"
            raise FwtopError(f"{line}; nothing was changed", reason=Refusal.REPLAYED)
        one = replace(one, number=said.number)
        return self._told(members, self._rollouts.decide(one, said.action, "the roll-out's own key"))

    def _verified_confirmation(self, text: bytes, signature: str) -> tuple[Rollout, Confirmation]:
        """Return the roll-out whose key signed, and what it says."""
        from fwtop.guardian.fleet.verify import Authorities, unsigned, verified

        known = self._recorder.known.rollouts
        lines = [
            f'{name} namespaces="{CONFIRMED_FOR}" {one.confirm_key}\n'
            for name, one in known.items()
            if one.confirm_key
        ]
        if not lines:
            raise unsigned("no roll-out that this machine knows has a key to confirm it")
        found = verified(
            text, (signature,), CONFIRMED_FOR, Authorities("".join(lines).encode()),
            lambda signed: plain(read_confirmation(signed)),
        )  # fmt: skip
        return known[found.principals[0]], of_plain(Confirmation, found.value)

    def _log_idle(self, event: str, about: dict[str, object]) -> None:
        """Log what changed nothing, and any courier can cause: as much as there is patience and disk for."""
        if about.get("reason") == "busy" or self._recorder.trouble or self._logged.is_over():
            self._left_out += 1
            return
        left_out = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        self._recorder.note(self._recorder.known, {"event": event, **about, **left_out})

    def _told(self, members: Membership, *rollouts: Rollout, warnings: Sequence[str] = ()) -> dict[str, Any]:
        return self._data(members, tuple(map(self._rollouts.told, rollouts)), (), warnings)

    def _data(
        self,
        members: Membership,
        rollouts: tuple[RolloutTold, ...],
        plans: tuple[dict[str, Any], ...] = (),
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        machine, known = members.machine, self._recorder.known
        revision = known.newest.get(machine.fleet, Newest()).revision
        warnings = tuple(dict.fromkeys((*self._recorder.warnings, *warnings)))
        data: dict[str, Any] = plain(Told(
            machine.fleet, machine.name, tuple(sorted(machine.all_labels)), revision, SCHEMA, time.time(),
            known.head, machine.frozen, rollouts, plans, warnings,
        ))  # fmt: skip
        return data


def _sources(document: Document, attached: int | None) -> Mapping[str, Sequence[Prefix]]:
    """Return the lists beside a document, if they are those that were signed; raises FwtopError."""
    about = document.sources
    if not isinstance(about, Sources):
        if attached is None:
            return {}
        raise _wrong_sources("lists came beside a document that has none")
    if attached is None:
        raise _wrong_sources("the document's lists did not come with it")
    try:
        mapped = map_sealed(attached)
        found = hashlib.sha256(mapped).hexdigest()
        if (len(mapped), found) != (about.size, about.sha256):
            line = f"the lists that came have SHA-256 {found[:16]}…, signed was {about.sha256[:16]}…"
            raise _wrong_sources(line)
        lists = read_bundle(attached)
    except (ValueError, IndexError) as error:
        raise _wrong_sources(f"the lists that came make no sense: {safe_text(error, limit=100)}") from None
    if sum(map(len, lists.values())) != about.entries or not lists.keys() <= set(
        map(str, range(len(document.rules)))
    ):
        raise _wrong_sources("the lists are not those of the document's rules, or have other entries")
    return lists


def _wrong_sources(said: str) -> FwtopError:
    line = f"{said}; nothing was changed; roll the rule out again"
    return FwtopError(line, reason=Refusal.SOURCES)
