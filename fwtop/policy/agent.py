"""Policies for a program: a child of the guardian, which works on one request and on what decides its trial.

It does what `fwtop policy` does, by the same steps, as root and without force. Its arguments are the
descriptors of two sockets (to the guardian's event loop, which passes its program's requests on; and to the
guardian as a client), the program's user, the directory of the versions and the operator's allow-list.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from fwtop.client.connection import Connection
from fwtop.client.discovery import GuardianClient
from fwtop.guardian.serving.requests import guarded, refused
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import close_all
from fwtop.model import messages, protocol
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.prefix_list import listed_entries, read_bundle, together
from fwtop.model.errors import FwtopError
from fwtop.policy import transaction
from fwtop.policy.document import Policy, parse
from fwtop.policy.exports import documents, write_lines
from fwtop.policy.live import Difference, Live, Trial
from fwtop.policy.schema import ListTable
from fwtop.policy.transaction import Planned
from fwtop.policy.versions import Versions

_NAME = "policy"  # of the text, in what is said of it
_MAX_DESCRIPTORS = 1
_LIMITS = (  # of what a program can make this process take, beside the guardian
    (resource.RLIMIT_AS, 4 << 30),
    (resource.RLIMIT_FSIZE, 1 << 30),  # of a file of an export, too
)


def main(arguments: Sequence[str]) -> int:
    """Answer one request, and those that decide its trial."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's buffers for each processor would use up the limit
    for limit, value in _LIMITS:
        resource.setrlimit(limit, (value, value))
    control, inner, user, directory, allow_file = arguments
    guardian = GuardianClient(Connection(socket.socket(fileno=int(inner))), {})
    netns = namespaces.own_name()
    versions = Versions(netns, Path(directory))
    agent = PolicyAgent(
        socket.socket(fileno=int(control)),
        Live(guardian, versions.modes()),
        versions,
        Path(allow_file),
        f"program of user {user}",
    )
    agent.serve()
    return 0


class PolicyAgent(Struct):
    """The means of a child: connections, versions, and the operator's allow-list."""

    control: socket.socket
    live: Live
    versions: Versions
    allow_file: Path
    note: str
    files: list[int] = field(default_factory=list)  # go with the answer

    def serve(self) -> None:
        """Answer the request, unless the program has gone."""
        request, lists = self._receive()
        if request is None:
            return

        def work() -> dict[str, Any]:
            if isinstance(request, protocol.PolicyRead):
                return self._told(request, lists)
            return self._done(request, lists)

        self._answer(guarded(request, work))

    def _receive(
        self,
    ) -> tuple[protocol.PolicyRead | protocol.PolicyChange | None, Mapping[str, Sequence[Prefix]]]:
        """Return the next request and the lists beside it, None at the end."""
        message, descriptors, _, _ = socket.recv_fds(self.control, messages.MAX_MESSAGE, _MAX_DESCRIPTORS)
        request = messages.parse_request(message).request if message else None
        if not isinstance(request, protocol.PolicyRead | protocol.PolicyChange):
            return None, {}
        try:
            lists = read_bundle(descriptors[0]) if descriptors else {}
            return request, lists | {name: entries_of(texts) for name, texts in request.lists.items()}
        except FwtopError as error:
            self._answer(refused(request, error))
            return None, {}
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            self._answer(messages.Answer(False, f"not understood: {error}; nothing was changed", 2))
            return None, {}
        finally:
            close_all(descriptors)

    def _answer(self, answer: messages.Answer) -> None:
        message = messages.encode_answer(answer)
        if len(message) > messages.MAX_MESSAGE:
            message = messages.encode_answer(messages.Answer(False, "the answer is too long", 1))
        try:
            socket.send_fds(self.control, [message], self.files)
        except OSError:
            return  # the program is gone, or the guardian

    def _told(self, request: protocol.PolicyRead, lists: Mapping[str, Sequence[Prefix]]) -> dict[str, Any]:
        if request.action == "history":
            return transaction.history(self.versions)
        if request.action == "show":
            return transaction.shown(self.versions, request.version)
        if request.action not in protocol.POLICY_READS:
            line = f"policyread has no action {request.action[:40]!r}: {', '.join(protocol.POLICY_READS)}"
            raise FwtopError(line, 2, field="action")
        policy = policy_of(request.text, lists)
        if request.action == "check":
            return transaction.counted(policy)
        if request.action == "plan":
            return Planned.of(self.live, policy, self.versions.newest_lists()).document()
        if request.action == "diff":
            return transaction.difference_document(self.live.difference(policy, self.versions.newest_lists()))
        if request.format not in protocol.POLICY_FORMATS:
            line = f"there is no format {request.format[:40]!r}: {', '.join(protocol.POLICY_FORMATS)}"
            raise FwtopError(line, 2, field="format")
        return {"files": self._exported(policy, request.format)}

    def _exported(self, policy: Policy, format: str) -> list[str]:
        names = []
        for name, lines in documents(policy, _NAME, format, self.allow_file).items():
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                write_lines(file, lines)
            self.files.append(descriptor)
            names.append(name)
        return names

    def _done(self, request: protocol.PolicyChange, lists: Mapping[str, Sequence[Prefix]]) -> dict[str, Any]:
        span = request.confirm_seconds
        if not 0 <= span <= protocol.MAX_SECONDS:
            line = f"confirm_seconds must be from 0 to {protocol.MAX_SECONDS:g}; nothing was changed"
            raise FwtopError(line, 2, field="confirm_seconds")
        if request.action == "rollback":
            version = transaction.before(self.versions, request.version)
            policy = self.versions.policy_of(version)
            note = f"{self.note}, rollback to {version.number}"
        elif request.action == "apply":
            policy, note = policy_of(request.text, lists), self.note
        else:
            line = f"policychange has no action {request.action[:40]!r}; nothing was changed"
            raise FwtopError(line, 2, field="action")
        changes: dict[str, Any] = {}

        def told(change: Difference) -> None:
            changes.update(transaction.difference_document(change))

        def asked(trial: Trial) -> bool:
            self._answer(messages.Answer(True, data={"trial": True, "seconds": span, **changes}))
            while (kept := self._decided(trial)) is None:
                pass
            return kept

        outcome = transaction.bring_in(
            self.live, self.versions, transaction.PolicyRequest(policy, note, span), told, asked
        )
        kept = outcome.version.number if outcome.version is not None else None
        return {"kept": kept, "unchanged": outcome.unchanged, **changes}

    def _decided(self, trial: Trial) -> bool | None:
        """Return whether the program keeps the policy on trial: not if it does not answer or has gone.

        None: it goes on, as the program asked to renew it.
        """
        if not select.select([self.control], [], [], max(0.0, trial.ends - time.monotonic()))[0]:
            return False
        request, _ = self._receive()
        if not isinstance(request, protocol.PolicyChange) or request.action != "renew":
            return isinstance(request, protocol.PolicyChange) and request.action == "keep"
        try:
            self.live.renew_trial(trial, request.confirm_seconds)
            answer = messages.Answer(True)
        except FwtopError as error:
            answer = messages.Answer.of(error)
        left = max(0, round(trial.ends - time.monotonic()))
        self._answer(replace(answer, data={"trial": True, "seconds": left}))
        return None


def policy_of(text: str, lists: Mapping[str, Sequence[Prefix]]) -> Policy:
    """Read a program's policy, whose lists are in its text or beside it; raises FwtopError (code 2).

    A file that it names is the program's to read: root opens none for it.
    """

    def entries(name: str, table: ListTable) -> Sequence[Prefix]:
        named = listed_entries(table.texts)
        if table.file is not UNSET and name not in lists:
            raise FwtopError("the guardian opens no file for a program: its entries go into lists", 2)
        return together([lists[name], named]) if name in lists else named

    try:
        return parse(text, _NAME, entries)
    except FwtopError as error:
        error.field = error.field or "text"
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
