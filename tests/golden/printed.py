"""What verbs print or write that need neither root nor a kernel: help, reports, exports, captures."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.engine.compete import print_explanations
from fwtop.cli import fleet, main
from fwtop.console.headless import render as render_text
from fwtop.console.judging import LoadedConfig
from fwtop.console.playback import capture
from fwtop.model.protocol import POLICY_FORMATS
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.snapshot import Sources, Tables
from fwtop.policy.document import read
from fwtop.policy.exports import documents
from fwtop.render.observation import observation_json
from fwtop.report import render
from fwtop.report.bundle import bundle_files
from fwtop.report.summary import digest
from fwtop.store.reader import load_session
from fwtop.store.writer import SessionWriter
from tests.golden.kept import compact
from tests.unit.stored_samples import START, evidence, other_rules, session_ticks, status

TOP = 5


def helps(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the help of each verb, one entry a line: versions of Python wrap differently."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    found = {"fwtop.txt": _printed(["--help"])}
    found |= {f"{verb}.txt": _entries(_printed([verb, "--help"])) for verb in main.VERBS}
    return found | {
        f"fleet-{name}.txt": _entries(_printed(["fleet", name, "--help"])) for name in fleet.ACTIONS
    }


def _printed(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main.main(words)
    return out.getvalue()


def _entries(text: str) -> str:
    """Join wrapped lines, and write `-i IF, --interface IF` as Python 3.13 does."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and lines[-1] and line and (line.startswith("   ") or not line.startswith(" ")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    joined = "\n".join(re.sub(r"(?<=\S) +", " ", line) for line in lines)
    return re.sub(r"(-\w) (\S+), (--\S+) \2", r"\1, \3 \2", joined) + "\n"


def reports(directory: Path) -> dict[str, str]:
    """Return a session's reports, and the files of its bundle."""
    others = tuple(status(rule, START + 60) for rule in other_rules())
    session = SessionWriter(
        directory, host="web-1", interfaces=("eth0",), version="0.1.0", geoip="a.mmdb (3 days old)"
    )
    for tick in session_ticks():
        rules = tick.mitigations + others if tick.mitigations else ()
        shown = replace(tick, mitigations=rules, tables=_fewer(tick.tables))
        session.write(shown, evidence=evidence(shown))
    session.close()
    assert session.path is not None
    record = load_session(session.path)
    files = bundle_files(record, digest(record))
    texts = {
        name: content.decode("utf-8", "replace")
        for name, content in files.items()
        if not name.endswith(".pcap")
    }
    packets = {f"{name}.hex": _hex(content) for name, content in files.items() if name.endswith(".pcap")}
    return texts | packets | {f"report.{name}": render(record, name) for name in ("sh", "txt")}


def _fewer(tables: Tables) -> Tables:
    """Cut what a report lists, so that the kept files stay small."""
    return replace(
        tables,
        sources=Sources(
            *(getattr(tables.sources, name)[:TOP] for name in ("address", "prefix", "asn", "country"))
        ),
        ports=tables.ports[:TOP],
        payloads=tables.payloads[:TOP],
    )


def _hex(content: bytes) -> str:
    return "\n".join([*textwrap.wrap(content.hex(), 100), ""])


def exports() -> dict[str, str]:
    """Return what a policy is exported as."""
    policy = read(Path(__file__).with_name("policy.toml"))
    nobody = Path("/nonexistent")
    return {
        f"{form}/{name}": "\n".join([*lines, ""])
        for form in POLICY_FORMATS
        for name, lines in documents(policy, "policy.toml", form, nobody).items()
    }


def captured(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what `read` prints of a capture: text, JSON, explanations."""
    monkeypatch.setattr(capture, "load_config", lambda: LoadedConfig(AdviseConfig(), ()))
    monkeypatch.setattr("socket.gethostname", lambda: "reader")
    with path.open("rb") as file:
        result = capture.observe_capture(file, path.name, top=TOP, lookup=NoOrigin(), explains=True)
    explained = io.StringIO()
    print_explanations(result.whole.advisor.explained, explained)
    return {
        f"{path.name}.json": compact(observation_json(result.snapshot, top=TOP)),
        f"{path.name}.txt": render_text(result.snapshot, top=TOP),
        f"{path.name}.explain.txt": explained.getvalue(),
    }
