"""What a machine says of itself: a summary each second under attack, and answers, signed with its own key.

A broker's rights keep machines from speaking in each other's name; the signature does so even where a right
was found that lets them. Texts come from machines that may have been taken over: whoever shows them takes
them through `safe_text`, as here when they are read.
"""

from __future__ import annotations

import os
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from fwtop.fleet.keys import ANSWER, SUMMARY, MachineKey, unsealed
from fwtop.fleet.transport import MAX_ANSWER, MAX_SUMMARY
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json

SCHEMA = 1
NOT_WATCHED, NO_GUARDIAN = "NOT WATCHED", "NO GUARDIAN"  # verdicts of a machine that can't tell
_ATTACKS, _ROLLOUTS, _TROUBLE = 6, 12, 4
_LOSSES = 3  # of each rule
_TEXT = 160  # characters
_SIGNATURE = 96  # bytes in front of what is signed, at most


class Attack(Struct, frozen=True):
    """An attack that a machine sees."""

    kind: str
    title: str
    target: str
    severity: str
    pps: float


class Rollout(Struct, frozen=True):
    """A roll-out as it is on a machine, with what its rules do there."""

    rollout: str
    stage: str  # Stage of document.py, or "refused"
    counting: bool = False
    acting: bool = False
    pps: float = 0.0  # that its rules drop
    packets: int = 0
    why: str = ""


class Summary(Struct, frozen=True, kw_only=True):
    """How a machine fares; rates are of a second. Fields of newer programs are passed over."""

    schema: int = SCHEMA
    fleet: str
    name: str
    instance: str  # of the process: two that alternate are two machines with one identity
    number: int  # rises with each summary of an instance
    at: float  # Unix seconds, by the machine's clock
    version: str = ""
    labels: tuple[str, ...] = ()
    verdict: str = NOT_WATCHED
    arrives_pps: float = 0.0
    arrives_bps: float = 0.0
    reaches_pps: float = 0.0
    rules_pps: float = 0.0
    clients: float | None = None  # connections that they make
    clients_before: float | None = None
    harm: str = ""  # what a rule surely costs clients
    attacks: tuple[Attack, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    revision: int = 0  # the highest of a document there
    trouble: tuple[str, ...] = ()

    @property
    def attacked(self) -> bool:
        """Whether it sees an attack."""
        return bool(self.attacks)


class Answer(Struct, frozen=True, kw_only=True):
    """What a machine answers to a question that was asked of all: how it fares, and what it said to that."""

    summary: Summary
    question: str  # the question's nonce
    told: dict[str, Any] | None = None  # `Told` of document.py
    refused: str = ""
    reason: str = ""


def sealed_summary(summary: Summary, key: MachineKey) -> bytes:
    """Return a summary as it is published; what is longest is cut until it fits."""
    return key.seal(SUMMARY, to_json(fitting(summary, MAX_SUMMARY - _SIGNATURE)))


def sealed_answer(answer: Answer, key: MachineKey) -> bytes:
    """Return an answer as it is sent; of one that is too long only the first losses and warnings."""
    if answer.told is not None and len(to_json(answer)) > MAX_ANSWER - _SIGNATURE:
        plans = [
            {name: said[:_LOSSES] if isinstance(said, list | tuple) else said for name, said in plan.items()}
            for plan in answer.told["plans"]
        ]
        answer = replace(answer, told=answer.told | {"plans": plans})
    return key.seal(ANSWER, to_json(answer))


def read_summary(message: bytes, name: str, key: str) -> Summary:
    """Read what was published under a machine's name; raises FwtopError unless that one's key signed it."""
    summary: Summary = _read(Summary, unsealed(key, SUMMARY, message))
    if summary.name != name:
        raise FwtopError("it speaks in another machine's name")
    cleaned: Summary = _cleaned(summary)
    return cleaned


def read_answer(message: bytes, name: str, key: str) -> Answer:
    """Read a machine's answer; raises FwtopError as `read_summary`."""
    answer: Answer = _read(Answer, unsealed(key, ANSWER, message))
    if answer.summary.name != name:
        raise FwtopError("it speaks in another machine's name")
    return replace(
        answer,
        summary=_cleaned(answer.summary),
        refused=safe_text(answer.refused, limit=400),
        reason=safe_text(answer.reason, limit=40),
    )


def new_instance() -> str:
    """Return what names a process."""
    return os.urandom(6).hex()


def fitting(summary: Summary, most: int) -> Summary:
    """Return a summary of at most so many bytes: the least important rows go first."""
    summary = replace(
        summary,
        attacks=summary.attacks[:_ATTACKS],
        rollouts=summary.rollouts[-_ROLLOUTS:],
        trouble=tuple(line[:_TEXT] for line in summary.trouble[:_TROUBLE]),
        labels=summary.labels[:16],
    )
    while len(to_json(summary)) > most:
        if len(summary.rollouts) > 1:
            summary = replace(summary, rollouts=summary.rollouts[1:])
        elif summary.attacks[1:]:
            summary = replace(summary, attacks=summary.attacks[:-1])
        else:
            summary = replace(summary, trouble=(), labels=(), attacks=(), rollouts=())
    return summary


def _read(cls: Any, body: bytes) -> Any:  # noqa: ANN401 - Summary or Answer
    try:
        return of_json(cls, body)
    except ValueError as error:
        raise FwtopError(f"it makes no sense: {safe_text(error, limit=120)}") from None


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - a summary, and what it holds
    if isinstance(value, str):
        return safe_text(value, limit=_TEXT)
    if isinstance(value, tuple):
        return tuple(map(_cleaned, value))
    if isinstance(value, Struct):
        return replace(value, **{name: _cleaned(one) for name, one in asdict(value).items()})
    return value
