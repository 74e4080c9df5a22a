"""`fwtop fleet sign`, `deliver` and `log`: documents without a courier, and what became of them here."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.cli.options import Verb, add_netns, flag, option, seconds
from fwtop.client import discovery
from fwtop.fleet.document import SIGNED_FOR, Action, Sealed, Stage, Told, encode, read_document
from fwtop.fleet.signing import sign
from fwtop.guardian.fleet.record import LOG, check_log, log_lines
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.errors import FwtopError
from fwtop.model.files import read_regular
from fwtop.model.paths import fleet_records
from fwtop.model.protocol import FleetConfirm, FleetDocument
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, of_plain, to_json
from fwtop.render.numbers import plural, utc

_MOST_BYTES = 1 << 20
_MOMENT = "%Y-%m-%d %H:%M:%SZ"
_VALID_SECONDS = 3600.0


def _sign_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a document (docs/API.md), or one that others signed already; -: standard input"
    parser.add_argument("file", metavar="FILE", help=what)
    key = "private key, or public one of an agent's; may be given more than once"
    parser.add_argument("--key", metavar="KEY", type=Path, action="append", required=True, help=key)
    span = "how long it may begin, where the document has no not_after (default 1h)"
    option(parser, "--valid", "TIME", span, seconds, default=_VALID_SECONDS)
    option(parser, "-o --output", "FILE", "write there, not to standard output", Path)


def _sign(args: argparse.Namespace) -> int:
    """Fill in what a draft leaves out, sign it, and print text and signatures as one JSON object."""
    given = _object(_content(args.file), args.file)
    sealed = _sealed(given, args.file) if "signatures" in given else _of_draft(given, args.valid)
    text = sealed.text.encode()
    for rule in read_document(text).rules:
        rule_of_wire(rule)
    added = tuple(sign(key, text, SIGNED_FOR) for key in args.key)
    sealed = replace(sealed, signatures=(*sealed.signatures, *added))
    _print(to_json(sealed).decode(), args.output)
    return 0


def _of_draft(given: dict[str, Any], valid: float) -> Sealed:
    """Return an unsigned document; its revision is the present time, unless the draft has one."""
    now = time.time()
    revision = given.get("revision", int(now))
    made = {"action": Action.RULES.value, "revision": revision, "rollout": f"r{revision}", "issued": now}
    made |= {"schema": 1, "not_after": now + valid, **given}
    return Sealed(encode(read_document(to_json(made))).decode(), ())


def _deliver_arguments(parser: argparse.ArgumentParser) -> None:
    what = "what 'fwtop fleet sign' printed, or a document with its signature of ssh-keygen in FILE.sig"
    parser.add_argument("file", metavar="FILE", help=f"{what}; -: standard input")
    flag(parser, "--preview", "install nothing: tell what the rules would do here")
    flag(parser, "--calm", "this machine is not attacked: what is to count in calm counts")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def _deliver(args: argparse.Namespace) -> int:
    """Hand a document or a confirmation to this machine's guardian, and print its answer."""
    content = _content(args.file)
    given = _object(content, args.file)
    if "signatures" in given:
        sealed = _sealed(given, args.file)
    else:
        sealed = Sealed(content.decode(), (_content(f"{args.file}.sig").decode("ascii", "replace"),))
    request: FleetDocument | FleetConfirm = FleetDocument(
        sealed.text, sealed.signatures, args.preview, args.calm
    )
    if "number" in _object(sealed.text.encode(), args.file):
        request = FleetConfirm(sealed.text, "".join(sealed.signatures[:1]))
    with discovery.connect(netns=args.netns) as guardian:
        data = guardian.demand(request).data
    if args.json:
        print(json.dumps({"schema": 1, **data}))
    else:
        print("\n".join(_lines(of_plain(Told, data))))
    return 1 if any(plan["refused"] or plan["needs_force"] for plan in data["plans"]) else 0


def _lines(told: Told) -> list[str]:
    lines = []
    for one in told.rollouts:
        until = f", until {utc(one.confirm_by)} unless it is kept" if one.confirm_by is not None else ""
        counts = ", only counting" if one.counting else ""
        acts = ", not in force" if one.rules and not one.acting else ""
        rules = f"; {plural(len(one.rules), 'rule')}: {', '.join(one.rules)}" if one.rules else ""
        stage = f"{one.stage.value}{counts}{acts}{until}{rules}"
        lines.append(f"{told.machine}: {one.rollout} of {' and '.join(one.signers)}: {stage}")
        lines += [f"  {one.why}"] if one.why and one.stage is not Stage.KEPT else []
    for plan in told.plans:
        lines += [f"  {line}" for line in plan["commands"]]
        lines += [f"  {loss['who']}: {loss['words']}" for loss in plan["losses"]]
        lines.append(f"  clients: {plan['clients']}")
        lines += [f"  refused: {why}" for why in (plan["refused"], plan["needs_force"]) if why]
    lines += [f"warning: {line}" for line in told.warnings]
    return [safe_text(line, limit=1000) for line in lines] or [f"{told.machine}: nothing of it is here"]


def _log_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--jsonl", "print the lines of the log as they are")
    flag(parser, "--verify", "check that no line was changed, cut or left out")
    add_netns(parser)


def _log(args: argparse.Namespace) -> int:
    """Print what was signed, by whom, what became of it on this machine, and why it was refused."""
    directory = fleet_records(args.netns)
    if args.verify:
        print(f"{plural(check_log(directory), 'line')}, each follows from the one before it")
        return 0
    line = b""
    for line in log_lines(directory):
        print(line.decode("utf-8", "replace") if args.jsonl else _log_line(line))
    if not (line or args.jsonl):
        print(f"nothing was brought to this machine yet: {directory / LOG} is empty or not there")
    return 0


def _log_line(line: bytes) -> str:
    try:
        event = of_json(dict[str, Any], line)
        at = utc(float(event.get("at", 0.0)), _MOMENT)
    except (TypeError, ValueError):
        return f"damaged: {safe_text(line.decode('utf-8', 'replace'), limit=80)}"
    signers = event.get("signers")
    by = " and ".join(map(str, signers)) if isinstance(signers, list) else "nobody known"
    names = ("reason", "why", "by", "courier")
    more = [f"{name} {event[name]}" for name in names if event.get(name)]
    more += [str(rule) for rule in event.get("rules") or ()]
    what = f"{event.get('rollout', '-')}  revision {event.get('revision', '-')}  of {by}"
    return safe_text("  ".join([at, f"{event.get('event', '-')!s:<9}", what, *more]), limit=1000)


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read(_MOST_BYTES) if file == "-" else read_regular(Path(file), _MOST_BYTES)
    except OSError as error:
        raise FwtopError(f"cannot read {safe_text(file)}: {error.strerror}; nothing was changed", 2) from None


def _object(content: bytes, file: str) -> dict[str, Any]:
    try:
        return of_json(dict[str, Any], content)
    except ValueError:
        raise FwtopError(f"{safe_text(file)} is not a JSON object; nothing was changed", 2) from None


def _sealed(given: dict[str, Any], file: str) -> Sealed:
    try:
        return of_plain(Sealed, given)
    except ValueError as error:
        raise FwtopError(f"{safe_text(file)}: {safe_text(error)}; nothing was changed", 2) from None


def _print(text: str, output: Path | None) -> None:
    if output is None:
        print(text)
        return
    try:
        output.write_text(f"{text}\n", "utf-8")
    except OSError as error:
        raise FwtopError(f"cannot write {safe_text(output)}: {error.strerror}") from None


ACTIONS = {
    "sign": Verb(
        "Sign a document for a fleet's machines, with SSH keys: who delivers it decides nothing.",
        "fwtop fleet sign rule.json --key ~/.ssh/id_ed25519 -o signed.json",
        _sign_arguments,
        _sign,
    ),
    "deliver": Verb(
        "Hand a signed document to this machine's guardian, which verifies it and tries its rules.",
        "fwtop fleet deliver signed.json --preview",
        _deliver_arguments,
        _deliver,
    ),
    "log": Verb(
        "What the fleet's operators had done on this machine, what was refused, and why.",
        "fwtop fleet log --verify",
        _log_arguments,
        _log,
    ),
}
