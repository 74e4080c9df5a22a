"""One rule on many machines: fwtop fleet block, limit, match, drop, protect, and undo."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from fwtop.cli.fleet.setup import add_operators
from fwtop.cli.options import Verb, flag, option, seconds
from fwtop.cli.rules import block, making, protect
from fwtop.cli.rules.mitigation import DEFAULT_TTL_SECONDS
from fwtop.fleet import founding, lists, register, rollout
from fwtop.fleet.broker import Broker
from fwtop.fleet.document import Action, Calm, Document, Sealed, Sources, is_name, read_document
from fwtop.fleet.founding import OperatorFile
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.rollout import Leader, Outcome, Preview
from fwtop.fleet.signing import ConfirmKey, seal
from fwtop.fleet.summary import Answer
from fwtop.fleet.transport import WANTED
from fwtop.fleet.view import View
from fwtop.fleet.wanted import DOCUMENT, UNDO, Question, encoded
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json
from fwtop.render.numbers import duration, percent, si

_PREVIEW_SECONDS = 4.0  # a recorder takes up to two to say what a rule stops
_TRIAL_SECONDS = 30.0
_KEYS = ("id_ed25519", "id_ed25519_sk", "id_ecdsa_sk", "id_ecdsa", "id_rsa")  # of ~/.ssh, the first there
_SHOWN = 8  # machines in a list
_MOST = 100_000  # machines in a wave
_HARMS = 0.001  # of normal traffic: less is not worth a word


def _verb(text: str, example: str, own: Any, rules_of: Callable[..., list[Rule]]) -> Verb:  # noqa: ANN401
    def arguments(parser: argparse.ArgumentParser) -> None:
        own.arguments(parser)
        add_rollout(parser)

    return Verb(text, example, arguments, lambda args: roll_out(args, rules_of(args)))


def add_rollout(parser: argparse.ArgumentParser) -> None:
    """Add for whom, in which waves, for how long, and --key and --fleet."""
    on = "for machines with this label or name; 'web+eu' must have both; repeat it for more"
    parser.add_argument("--on", action="append", required=True, metavar="LABEL", help=on)
    waves = "machines of each wave, their number or label, like 1,20,eu; then come all that are attacked"
    option(parser, "--waves", "WAVES", f"{waves}; 'all': all at once", _waves, default="1")
    flag(parser, "--everywhere", "then also on machines in calm, and on those that come later")
    flag(parser, "--calm-count", "with --everywhere: on machines in calm only count")
    measure = "how long each wave is measured before the next (default 5s)"
    option(parser, "--measure", "TIME", measure, seconds, default=rollout.MEASURE_SECONDS)
    trial = "after which what nobody renews or keeps ends (default 30s)"
    option(parser, "--trial", "TIME", trial, seconds, default=_TRIAL_SECONDS)
    add_signing(parser)


def _waves(text: str) -> tuple[int | str, ...]:
    """Read `--waves`: numbers of machines, and labels."""
    found = tuple(int(one) if one.isdecimal() else one for one in text.split(","))
    if not all(is_name(one) if isinstance(one, str) else 0 < one <= _MOST for one in found):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of numbers and labels, like 1,20,eu")
    return found


def add_signing(parser: argparse.ArgumentParser) -> None:
    """Add --key and --fleet."""
    key = "SSH key to sign with; a public one if an agent holds it (default: the first of ~/.ssh)"
    option(parser, "--key", "FILE", key, Path)
    add_operators(parser)


def blocking(args: argparse.Namespace) -> list[Rule]:
    """Return the rules of what is to be blocked, as one machine's verb makes them; raises FwtopError."""
    if args.list is not None or args.replace is not None or not args.target:
        line = "name the sources to block; --list and --replace are one machine's"
        raise FwtopError(f"{line}; nothing was changed", 2)
    return [replace(rule, ttl_seconds=args.ttl or DEFAULT_TTL_SECONDS) for rule in block.rules_of(args)]


def roll_out(args: argparse.Namespace, rules: list[Rule], name: str = "") -> int:
    """Roll rules out, in the place of older ones of the same `name`; return the exit status."""
    if args.force or args.netns or args.interface:
        raise FwtopError("--force, --netns and -i are one machine's own; nothing was changed", 2)
    rules = [replace(rule, group=args.group) for rule in rules] if args.group else rules
    bare, content, about = lists.detached(rules)
    newer = about is not None or bool(name)
    document = draft(
        args,
        schema=2 if newer else 1,
        action=Action.RULES,
        ttl_seconds=max(rule.ttl_seconds for rule in rules),
        rules=tuple(_plain(rule) for rule in bare),
        count_only=args.count,
        note="; ".join(rule.summary for rule in rules)[:200],
        sources=about or UNSET,
        name=name or UNSET,
    )
    return lead(args, document, content)


def lead(args: argparse.Namespace, document: Document, content: mmap.mmap | None = None) -> int:
    """Preview, ask, lead; print a line a machine; return the exit status."""
    if not (args.preview or args.yes or sys.stdin.isatty()):
        raise FwtopError(
            "no terminal to ask for confirmation; nothing was changed; use --yes or --preview", 2
        )
    file = founding.read_operator(args.fleet)
    with ConfirmKey() as key:
        document = replace(document, fleet=file.fleet, confirm_key=key.public)
        sealed = seal(document, [signing_key(args.key)])
        return asyncio.run(_led(args, file, _Signed(document, sealed, content), key))


def draft(args: argparse.Namespace, *, ttl_seconds: float, **about: Any) -> Document:  # noqa: ANN401 - fields
    """Return a roll-out's document by the options of `add_rollout`; `lead` names fleet and key."""
    now = time.time()
    return Document(
        fleet="",
        revision=int(now * 1000),
        rollout=new_id(),
        on=tuple(dict.fromkeys(args.on)),
        issued=now,
        not_after=now + ttl_seconds,
        trial_seconds=round(args.trial),
        calm=Calm.COUNT if args.calm_count else Calm.DROP,
        waves=rollout.waves_of(args.waves, everywhere=args.everywhere, seconds=args.measure),
        **about,
    )


def _plain(rule: Rule) -> dict[str, Any]:
    return {name: value for name, value in rule.to_dict().items() if name not in ("id", "created_by")}


def new_id() -> str:
    """Return a name for a roll-out."""
    return base64.b32encode(os.urandom(5)).decode().lower()


def signing_key(given: Path | None) -> Path:
    """Return the key to sign with; raises FwtopError."""
    found = [given] if given is not None else [Path.home() / ".ssh" / name for name in _KEYS]
    for path in found:
        if path.exists():
            return path
    raise FwtopError(f"{found[0]}: there is no such SSH key; name yours with --key; nothing was changed", 2)


class _Signed(Struct, frozen=True):
    document: Document
    sealed: Sealed
    content: mmap.mmap | None  # its lists


async def _led(args: argparse.Namespace, file: OperatorFile, signed: _Signed, key: ConfirmKey) -> int:
    document, sealed = signed.document, signed.sealed
    to = sys.stderr if args.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=to, flush=True)

    async with await Broker.connect(file.access) as broker:
        if not args.preview:
            await broker.check_room()
        known = await register.read(broker, file.fleet, MachineKey(file.registrar))
        view = View(known)
        await view.follow(broker)
        if signed.content is not None and isinstance(about := document.sources, Sources):
            await _sent(broker, signed.content, about, max(document.not_after - time.time(), 60.0), say)
            await rollout.distribute(broker, view, document, sealed, say)
        asked = await rollout.preview(broker, view, document, sealed, _PREVIEW_SECONDS)
        for line in preview_lines(document, asked):
            say(line)
        if args.preview or (why := _why_not(args, asked)):
            if not args.preview:
                raise FwtopError(f"{why}; nothing was changed")
            if args.json:
                print(json.dumps({"schema": 1, "preview": _preview_json(asked)}))
            return 0
        if not args.yes and not await asyncio.to_thread(_agreed, asked):
            say("nothing was changed")
            return 1
        again = partial(Broker.connect, file.access)
        leader = Leader(broker, view, document, sealed, key=key, say=say, connect=again)
        try:
            outcome = await leader.lead(asked)
        finally:
            await leader.close()
    say(_outcome_line(outcome, document))
    if args.json:
        print(json.dumps({"schema": 1, "preview": _preview_json(asked), "rollout": outcome_json(outcome)}))
    return 0 if outcome.is_kept else 1


async def _sent(
    broker: Broker, content: mmap.mmap, about: Sources, seconds: float, say: Callable[[str], None]
) -> None:
    """Send lists to the servers, and say how far that is, each second."""
    began = said = time.monotonic()

    def told(sent: int) -> None:
        nonlocal said
        if sent == about.size or time.monotonic() - said > 1.0:
            said = time.monotonic()
            share = f"{sent / about.size:.0%} of {about.size / (1 << 20):.1f} MiB"
            say(f"  list of {about.entries:,} entries: {share} sent to the servers, {said - began:.1f} s")

    await lists.send(broker, content, about, seconds, told)


def _why_not(args: argparse.Namespace, asked: Preview) -> str:
    if not asked.answers:
        return "no machine that it is for answered"
    if not asked.agreed:
        return "each machine refuses it"
    if not asked.attacked and not args.everywhere:
        return "none of these machines is attacked: --everywhere has all of them install it"
    return ""


def preview_lines(document: Document, asked: Preview) -> list[str]:
    """Return what the machines said to a document: whose turn it would be, who loses what, who refuses."""
    count = len(asked.answers) + len(asked.silent)
    lines = [f"{document.note}, on {count} machine{'s' * (count != 1)} of {', '.join(document.on)}"]
    for name in asked.attacked[:_SHOWN]:
        summary = asked.answers[name].summary
        attack = summary.attacks[0].title if summary.attacks else ""
        lines.append(f"  {name}: attacked, {attack}, {_foreseen_words(asked.answers[name])}")
    if len(asked.attacked) > _SHOWN:
        lines.append(f"  and {len(asked.attacked) - _SHOWN} more are attacked")
    told = {name: seen for name in asked.attacked if (seen := rollout.foreseen(asked.answers[name]))}
    if len(told) > 1:
        rates = [_stopped(seen) for seen in told.values()]
        total, of = sum(one for one, _ in rates), sum(one for _, one in rates)
        lines.append(f"  together: stops {si(total, 'pps')} of {si(of, 'pps')}, as {len(told)} machines say")
    for name, one in list(asked.agreed.items()):
        for plan in (one.told or {}).get("plans", ()):
            said = [loss.get("words", "") for loss in plan.get("losses", ())]
            if said:
                lines.append(f"  {name}: {safe_text('; '.join(said), limit=300)}")
    lines += [f"  refuses: {name}: {safe_text(why, limit=300)}" for name, why in asked.refused.items()]
    if asked.silent:
        lines.append(f"  did not answer: {', '.join(asked.silent[:_SHOWN])}")
    return lines


def _stopped(seen: list[dict[str, Any]]) -> tuple[float, float]:
    """Return how much rules together would stop of what arrives, at most all of it; packets a second."""
    arrives: float = max(one["of_pps"] for one in seen)
    return min(sum(one["pps"] for one in seen), arrives), arrives


def _foreseen_words(answer: Answer) -> str:
    """Say what the rules would stop on an attacked machine, and what of its other traffic they would drop."""
    seen = rollout.foreseen(answer)
    if seen is None:
        return f"{si(answer.summary.arrives_pps, 'pps')} arrive; it does not say what the rule stops"
    stops, arrives = _stopped(seen)
    rule = "the rule stops" if len(seen) == 1 else "the rules stop"
    words = f"{si(arrives, 'pps')} arrive; {rule} {percent(stops / max(arrives, 1))}"
    harms = max(one.get("normal_share") or 0.0 for one in seen)
    return words + (f", and {percent(harms)} of what seems to be no attack" if harms >= _HARMS else "")


def _agreed(asked: Preview) -> bool:
    first = asked.attacked[0] if asked.attacked else min(asked.agreed)
    try:
        said = input(f"start with {first}, then {len(asked.agreed) - 1} more at most? [y/N] ")
    except EOFError:
        return False
    return said.strip().lower() in {"y", "yes"}


def _outcome_line(outcome: Outcome, document: Document) -> str:
    applied = f"{len(outcome.applied)} of {len(outcome.meant)} machines"
    if outcome.is_kept:
        left = duration(max(document.not_after - time.time(), 0))
        more = f" ({outcome.reason})" if outcome.reason else ""
        undo = f"'fwtop fleet undo {outcome.rollout}' takes it back"
        return f"roll-out {outcome.rollout}: kept on {applied}{more}; ends in {left}; {undo}"
    return f"roll-out {outcome.rollout}: reverted; it was in force on {applied}: {outcome.reason}"


def _preview_json(asked: Preview) -> dict[str, Any]:
    machines = [
        {
            "name": name,
            "attacked": one.summary.attacked,
            "refused": rollout.refusal_of(one),
            **(one.told or {}),
        }
        for name, one in asked.answers.items()
    ]
    return {"machines": machines, "silent": list(asked.silent)}


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return a roll-out's outcome for JSON: counts where FLEET has counts, and who is who."""
    found = asdict(outcome)
    return {**found, "applied": len(outcome.applied), "machines": found.pop("states")}


def _undo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rollout", help="the roll-out's id: fwtop fleet status")
    flag(parser, "--json", "print one JSON document")
    add_signing(parser)


def _undo(args: argparse.Namespace) -> int:
    file = founding.read_operator(args.fleet)
    return asyncio.run(_undone(args, file))


async def _undone(args: argparse.Namespace, file: OperatorFile) -> int:
    async with await Broker.connect(file.access) as broker:
        name = f"{args.rollout}.{DOCUMENT}"
        entry = (await broker.read(WANTED, name)).get(name)
        if entry is None:
            line = f"there is no roll-out {safe_text(args.rollout, limit=40)!r}, or it has ended"
            raise FwtopError(f"{line}; see 'fwtop fleet status'")
        old = read_document(of_json(Sealed, entry.document).text.encode())
        now = time.time()
        document = replace(
            old,
            schema=1,
            sources=UNSET,
            name=UNSET,
            group=UNSET,
            mode=UNSET,
            action=Action.UNDO,
            revision=int(now * 1000),
            rules=(),
            waves=(),
            issued=now,
            confirm_key="",
        )
        sealed = seal(document, [signing_key(args.key)])
        view = View(await register.read(broker, file.fleet, MachineKey(file.registrar)))
        left, wrong = max(old.not_after - now, 1), ""
        try:
            await broker.put(WANTED, f"{args.rollout}.{UNDO}", encoded(sealed), seconds=left)
        except FwtopError as error:  # who is connected heard it all the same
            wrong = f"{error}; a machine that is off hears of this undo only if you repeat it later"
        stages = await _awaited(broker, view, document)
    if args.json:
        print(json.dumps({"schema": 1, "rollout": args.rollout, "machines": stages, "wrong": wrong}))
    else:
        for machine, stage in stages.items():
            print(f"  {machine}: {stage}")
        if wrong:
            print(f"! {wrong}")
    if wrong:
        return 1
    return 0 if all(stage in ("undone", "reverted", "untouched") for stage in stages.values()) else 1


async def _awaited(broker: Broker, view: View, document: Document) -> dict[str, str]:
    """Ask until no machine has the roll-out in force any more, for a while; return what each says."""
    meant, end = view.register.meant(document.on), time.monotonic() + 5.0
    while True:
        await view.ask(broker, Question.new(), 1.0, meant)
        stages = {name: "silent" for name in meant}
        for name in meant.keys() & view.machines.keys():
            rows = view.machines[name].summary.rollouts
            found = next((one.stage for one in rows if one.rollout == document.rollout), "untouched")
            stages[name] = found
        if time.monotonic() > end or not {"trial", "kept", "silent"} & set(stages.values()):
            return stages
        await asyncio.sleep(0.3)


def _of_making(name: str) -> Callable[[argparse.Namespace], list[Rule]]:
    def rules_of(args: argparse.Namespace) -> list[Rule]:
        rule_of = making.VERBS[name].rule_of
        assert rule_of is not None  # noqa: S101 - these verbs make rules
        return [rule_of(args)]

    return rules_of


_SHARED = (
    "on machines: previewed by all, then on trial on one that is attacked, then on all of them; it stays "
    "only if it does no harm."
)
ACTIONS = {
    "block": _verb(f"Block sources {_SHARED}", "fwtop fleet block 198.51.100.0/24 --on web", block, blocking),
    **{
        name: _verb(f"As 'fwtop {name}', {_SHARED}", example, making.VERBS[name], _of_making(name))
        for name, example in (
            ("limit", "fwtop fleet limit --proto udp --dport 53 --per 24 --rate 1000/s --on dns"),
            ("match", "fwtop fleet match --dns attack.example.com --proto udp --dport 53 --on dns"),
            ("drop", "fwtop fleet drop --proto udp --sport 53 --length 512:65535 --via xdp --on web"),
        )
    },
    "protect": _verb(
        f"As 'fwtop protect', {_SHARED}",
        "fwtop fleet protect 22/tcp --acl office --on web",
        protect,
        protect.rules_of,
    ),
    "undo": Verb(
        "Take a roll-out back on all machines, whether it is on trial or kept.",
        "fwtop fleet undo k3x7q2ab",
        _undo_arguments,
        _undo,
    ),
}
