"""A scene whose every text is hostile, as if nothing were sanitised at the door."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from screen_factory import conntrack_full, provisional, spoofed
from screen_fakes import COMMANDS, FakeControls
from screen_packets import carrying, listed
from screen_parts import joined

from fwtop.dissect.client import Dissection, Layer
from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView, Preview
from fwtop.model.service import Service
from fwtop.model.traffic.snapshot import FilterChain, LedgerRow, Ring, Snapshot, Surroundings
from fwtop.ui.settings import Effective, read_settings

OWNED = "13;37"  # in every sequence of HOSTILE that a terminal obeys, and in none of the program's
HOSTILE = (
    f"\x1b[{OWNED}mX\x1b]0;{OWNED}\x07\x1bP{OWNED}\x1b\\\x9b{OWNED}m\x9d{OWNED}\x9c\x1bc\x1b[6n\r\n\t\x08\x0e"
    "\u202eRTL\u200f\u2066\u2028e\u0301\u0300\u0489漢字🏴\u200d☠️😀[bold red][/][@click=app.quit]x[/]\x00\x7f"
)
FORBIDDEN = "\x9b\x9d\x9c\u202e\u200f\u2066\u2028\u0301\u0300\u0489漢字🏴\u200d😀"
# What the screen looks up, and never comes from packets
_CODES = (
    *("id", "rule", "replaces", "active_rule", "kind", "layer", "side", "protocol", "stage"),
    *("guardian", "number"),
)
_VALUES = ("prefix", "match", "state", "severity", "mode")


def poisoned(value: Any) -> Any:
    """Put hostile text into every text of a value."""
    if isinstance(value, str):
        return HOSTILE + value
    if isinstance(value, bytes):
        return HOSTILE.encode() + value
    if type(value) is tuple:
        return tuple(poisoned(item) for item in value)
    if isinstance(value, Struct):
        changed = {name: _field(name, getattr(value, name)) for name in value.__struct_fields__}
        return replace(value, **changed)
    return value


def _field(name: str, value: Any) -> Any:
    is_code = name in _CODES and isinstance(value, str | None)
    return value if is_code or name in _VALUES else poisoned(value)


def hostile() -> Snapshot:
    """Attacks, rules, drops and everything else that has a name."""
    base, full = provisional(), conntrack_full()
    around = Surroundings(
        (Service("tcp", 80, "nginx", 900.0), Service("udp", 53, "named", 30.0)),
        (Ring("eth0", 256, 256),),
        (FilterChain("raw", "ip raw", False), FilterChain("filter", "inet filter input", True)),
    )
    attacks = (*base.judgement.attacks, *spoofed().judgement.attacks)
    ledger = (*base.tables.ledger, LedgerRow("netfilter", "inet filter input", 900, 300.0))
    shot = replace(
        base,
        tables=replace(base.tables, ledger=ledger),
        judgement=joined(replace(base, judgement=replace(base.judgement, attacks=attacks))).judgement,
        conntrack=full.conntrack,
        notes=("drops estimated",),
        surroundings=around,
    )
    shot = poisoned(shot)
    broken = replace(shot.mitigations[1], acting=False, not_acting=HOSTILE)
    return replace(shot, origin=replace(shot.origin, file=None), mitigations=(shot.mitigations[0], broken))


class HostileControls(FakeControls):
    """Answers with hostile text, and fails with it."""

    def __init__(self) -> None:
        super().__init__()
        self.preview_answer = poisoned(
            Preview(
                0.1, 37_440.0, 0.01, 2.0, 37_442.0, ("a client",), ("careful",), False, "a", (("a", 0.1),)
            )
        )
        self.plan_answer = PlanView(poisoned(COMMANDS), (HOSTILE,))
        self.why_answer = (HOSTILE, HOSTILE * 40)
        self.dissection = Dissection((Layer(HOSTILE, ((HOSTILE, HOSTILE),)),), HOSTILE)
        self.recent = listed([carrying(HOSTILE.encode())] * 30, who=[HOSTILE] * 30)

    async def export(self, format_name: str) -> str:
        raise FwtopError(f"{format_name}: {HOSTILE}")

    async def write_packets(self, shown: object) -> str:
        raise FwtopError(HOSTILE)


def hostile_settings() -> Effective:
    """The defaults, after a file with mistakes that quote it."""
    return replace(read_settings(()), wrong=(HOSTILE, HOSTILE))
