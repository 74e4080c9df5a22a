"""Adopt the rules that a previous guardian left in the kernel."""

from __future__ import annotations

import time

from msgspec.structs import replace

from fwtop.guardian.mechanisms.mechanism import HEAD_CHANGED, Expected
from fwtop.guardian.records.journal import REPAIRING, Entry, rules_due
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.rules.state import GuardianState
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Rule, State
from fwtop.model.text import safe_text
from fwtop.rules.words import with_mode

_FOUND = "found in the kernel: the journal has lost it"


def adopt_all(state: GuardianState, lifecycle: Lifecycle) -> list[str]:
    """Adopt active rules, remove incomplete or expired ones; return a log line for each. Never raises."""
    done: list[str] = []
    try:
        state.fresh_allow()  # it says which lines may come before the allow-list
    except Exception as error:
        done.append(f"the allow-list could not be read: {safe_text(FwtopError.of(error))}")
    now = time.monotonic()
    for entry in state.journal.open_entries():
        try:
            entry = _as_confirmed(state, entry, now)  # noqa: PLW2901
            entry = replace(entry, rule=state.with_list(entry.rule))  # noqa: PLW2901
            done.append(_adopt(state, lifecycle, entry, now))
        except Exception as error:  # one rule must not keep the others from being adopted
            state.active[entry.rule.id] = entry  # tried again later; its timeout runs
            done.append(f"rule {entry.rule.id} could not be examined: {safe_text(FwtopError.of(error))}")
    done += state.known_lists.restore_unfinished() if state.known_lists is not None else []
    if state.allow_known:
        lifecycle.follow_allow()
    done += _finish_repairs(state, lifecycle)
    if state.journal.lost:
        done += _recover(state)
    for entry in list(state.active.values()):
        try:
            lifecycle.end_replaced(entry)
        except Exception as error:
            done.append(safe_text(FwtopError.of(error)))
    lifecycle.ending.remove_orphans()
    lifecycle.ending.update_watchdog()
    return done


def _as_confirmed(state: GuardianState, entry: Entry, now: float) -> Entry:
    """Return what a rule was before a trial that nobody confirmed, to be put back; another one as it is."""
    is_over = any(ended is State.REVERTED for _, ended, _ in rules_due([entry], now))
    before = state.journal.before(entry.rule.id) if is_over else None
    return entry if before is None else replace(before, note=REPAIRING + before.note, stamp=entry.stamp + 1)


def _adopt(state: GuardianState, lifecycle: Lifecycle, entry: Entry, now: float) -> str:
    """Adopt a rule, or end it and journal why; raises FwtopError where the kernel can't be read."""
    rule_id, name = entry.rule.id, f"rule {entry.rule.id}"
    ended, note = State.REVERTED, "half done when the guardian died"
    if entry.state in ACTIVE_STATES:
        over = rules_due([entry], now)
        if over:
            _, ended, note = over[0]
        elif any(name not in state.lists for name in entry.rule.lists_used):
            note = "the record of its list is lost"
        else:
            objects = state.objects_of(entry.rule)
            state.kernel.chains.variants.assign(rule_id, entry.variant)
            state.kernel.expect(entry.rule, objects)
            if state.kernel.present(Expected(entry.rule, objects)) or _is_repairing(entry):
                state.active[rule_id] = _in_its_variant(state, lifecycle, entry)
                return f"{name} adopted"
            note = "gone from the kernel"
    lifecycle.ending.remove({rule_id})
    lifecycle.ending.record(replace(entry, state=ended, ended=time.time(), note=note))
    return f"{name} removed: {note}"


def _in_its_variant(state: GuardianState, lifecycle: Lifecycle, entry: Entry) -> Entry:
    """Return an entry with the variant of iptables that has its lines, and journal that if it is news."""
    found = state.kernel.chains.variants.of(entry.rule.id).variant.name
    if found == entry.variant:
        return entry
    entry = replace(entry, variant=found)
    lifecycle.ending.record(entry)
    return entry


def _is_repairing(entry: Entry) -> bool:
    """Return whether the last guardian died while it repaired this rule."""
    return entry.note.startswith(REPAIRING)


def _finish_repairs(state: GuardianState, lifecycle: Lifecycle) -> list[str]:
    """Complete interrupted repairs once all rules are adopted; where that fails, the rule raises an alarm.

    Chains whose allow-list lines are not this version's get them: sets alone would spare nobody.
    """
    done = []
    short = state.kernel.look(state.active, force=True)
    outdated = {rule_id for rule_id, item in short.items() if item.text.startswith(HEAD_CHANGED)}
    for entry in list(state.active.values()):
        if not _is_repairing(entry) and entry.rule.id not in outdated:
            continue
        try:
            lifecycle.finish_repair(entry)
            done.append(f"rule {entry.rule.id} repaired")
        except Exception as error:
            done.append(f"rule {entry.rule.id} could not be repaired: {safe_text(FwtopError.of(error))}")
    return done


def _recover(state: GuardianState) -> list[str]:
    """Take over the rules that are in the kernel but in no record; never raises.

    What such a rule asked for besides its sources is not to be had from there. So it can be watched and
    undone, and it ends when the kernel ends it; kept for longer it can be where its sets say all there is
    to it.
    """
    try:
        rule_ids = state.kernel.rule_ids() - state.active.keys()
    except FwtopError as error:
        return [f"rules without a record could not be looked for: {error}"]
    unknown = {rule_id for rule_id in rule_ids if state.journal.find(rule_id) is None}
    done = []
    for rule_id in sorted(unknown, key=int):
        left = state.kernel.remains(rule_id)
        if left is None:
            continue
        rule = Rule(rule_id, left.kind, left.match, _FOUND, left.seconds, created=time.time())
        rule = with_mode(rule, left.mode)
        ends = time.monotonic() + left.seconds
        try:
            variant = state.kernel.chains.lines.find_variant(rule_id)
            entry = Entry(rule, variant, State.CONFIRMED, ends, note=_FOUND)
            state.journal.record(entry)
        except Exception as error:
            done.append(f"rule {rule_id} could not be taken over: {error}")
            continue
        state.active[rule_id] = entry
        done.append(f"rule {rule_id} was {entry.note}")
    return done
