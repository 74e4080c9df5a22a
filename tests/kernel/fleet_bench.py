"""A machine of a fleet: signers with keys of their own, root's files, and documents for its guardian."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guardian_bench import Bench
from msgspec import Struct
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.fleet.document import Action, Confirmation, Document, Sealed, digest, read_document
from fwtop.fleet.signing import ConfirmKey, seal
from fwtop.guardian.fleet.record import RECORD, Known, log_lines
from fwtop.model.errors import FwtopError
from fwtop.model.paths import fleet_directory, fleet_records
from fwtop.model.protocol import FleetConfirm, FleetDocument, FleetStatus, Undo
from fwtop.model.wire import of_json, to_json

FLEET = "prod"
SIGNERS = ("alice", "bob", "mallory")  # mallory is in no file


def made_keys(directory: Path, *names: str) -> dict[str, Path]:
    """Make a key for each name, and return the private halves."""
    for name in names:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(directory / name)]
        subprocess.run(command, check=True)
    return {name: directory / name for name in names}


def public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


class Member(Struct):
    """The victim of a bench as a machine of a fleet."""

    bench: Bench
    keys: dict[str, Path]
    revision: int = 0

    @property
    def directory(self) -> Path:
        return fleet_directory(self.bench.netns, self.bench.directory)

    @property
    def records(self) -> Path:
        return fleet_records(self.bench.netns, self.bench.state_directory or self.bench.directory)

    def join(self, text: str = "", name: str = "web-1") -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        given = f'fleet = "{FLEET}"\nname = "{name}"\nlabels = ["web", "eu"]\n{text}'
        self.write("machine.toml", given)
        self.signers(
            *(f'{who} namespaces="fwtop-fleet" {public(self.keys[who])}' for who in ("alice", "bob"))
        )

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o644)

    def signers(self, *lines: str) -> None:
        self.write("signers", "".join(f"{line}\n" for line in lines))

    def document(self, *rules: Any, action: Action = Action.RULES, **given: Any) -> Document:
        """Return the next document of the fleet, for this machine."""
        self.revision = given.pop("revision", self.revision + 1)
        now = time.time()
        made = {"fleet": FLEET, "on": ("web",), "issued": now, "not_after": now + 600, "trial_seconds": 600}
        made |= {"rollout": f"r{self.revision}", **given}
        data = tuple(rule.to_dict() if hasattr(rule, "to_dict") else rule for rule in rules)
        data = tuple({name: value for name, value in rule.items() if name != "id"} for rule in data)
        return Document(revision=self.revision, action=action, rules=data, **made)

    def sealed(self, document: Document, *by: str) -> Sealed:
        return seal(document, [self.keys[who] for who in by or ("alice",)])


def deliver(guardian: GuardianClient, sealed: Sealed, **how: bool) -> dict[str, Any]:
    """Hand a document over and return what is told; raises FwtopError."""
    return guardian.demand(FleetDocument(sealed.text, sealed.signatures, **how)).data


def confirm(
    guardian: GuardianClient, key: ConfirmKey, sealed: Sealed, action: Action, number: int = 1
) -> dict[str, Any]:
    """Hand over what the roll-out's own key says of a document."""
    text = sealed.text.encode()
    document = read_document(text)
    said = Confirmation(
        fleet=document.fleet, rollout=document.rollout, document=digest(text), action=action, number=number
    )
    given = key.seal(said)
    return guardian.demand(FleetConfirm(given.text, given.signatures[0])).data


def refusal(do: Any, *arguments: Any, **how: Any) -> tuple[str, str]:
    """Return the reason and the line with which something is refused."""
    try:
        do(*arguments, **how)
    except FwtopError as error:
        return error.reason, str(error)
    return "", "it was done"


def stage(guardian: GuardianClient, rollout: str) -> str:
    told = guardian.demand(FleetStatus()).data["rollouts"]
    return next(item["stage"] for item in told if item["rollout"] == rollout)


def events(member: Member) -> list[dict[str, Any]]:
    return [of_json(dict[str, Any], line) for line in log_lines(member.records)]


def reboot(bench: Bench, member: Member, **changed: Any) -> Known:
    """Stop the guardian and end its rules as a reboot does; return what it knows then, so changed."""
    bench.kill_guardian()
    record = member.records / RECORD
    known = of_json(Known, record.read_bytes())
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
    bench.kill_guardian()
    rollouts = {name: replace(one, boot="the one before", **changed) for name, one in known.rollouts.items()}
    known = replace(known, rollouts=rollouts)
    record.write_bytes(to_json(known))
    return known


def last(member: Member, name: str = "event") -> str:
    """Return a field of the last line of the machine's log, as far as it is written."""
    return str(next(reversed(events(member)), {}).get(name, ""))


@contextmanager
def member_of(bench: Bench) -> Iterator[Member]:
    """Make the bench's victim a machine of a fleet."""
    with tempfile.TemporaryDirectory(prefix="fwtop-keys-") as directory:
        member = Member(bench, made_keys(Path(directory), *SIGNERS))
        member.join()
        yield member
