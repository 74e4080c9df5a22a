"""/etc/fwtop/automatic.toml: the policy of automatic rules; none without it, or if it has errors."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fwtop.model.config_file import ConfigText, table_of
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text
from fwtop.model.wire import of_plain

FILE = "/etc/fwtop/automatic.toml"
_RULES = tuple(
    kind.value for kind in (Kind.IPSET, Kind.HASHLIMIT, Kind.STRING, Kind.XDP, Kind.TC, Kind.NFTABLES)
)
_NUMBERS = {
    "confidence": (0.5, 1.0),
    "harm": (0.0, 0.5),
    "stops": (0.05, 1.0),
    "after_seconds": (0.0, 3600.0),
    "trial_seconds": (5.0, 300.0),
    "ttl_seconds": (60, 86_400),
    "most_rules": (1, 64),
    "lost_handshakes": (0.05, 1.0),
}


class Policy(Struct, frozen=True):
    """The settings; docs/automatic.toml documents each."""

    enabled: bool = False
    rules: tuple[str, ...] = _RULES
    attacks: tuple[str, ...] = ()  # kinds; none: all
    confidence: float = 0.9
    harm: float = 0.01
    stops: float = 0.5
    after_seconds: float = 0.5
    trial_seconds: float = 10.0
    ttl_seconds: int = 600
    most_rules: int = 8
    lost_handshakes: float = 0.2


def read_policy(file: ConfigText | None) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy, and what is wrong in the file: then nothing is automatic."""
    if file is None:
        return Policy(), ()
    table, wrong = table_of(file)
    lines = [line.replace("the defaults hold", "nothing is automatic") for line in wrong]
    for name, value in table.items():
        if problem := _problem(name, value):
            lines.append(safe_text(f"{file.path}: {name} {problem}; nothing is automatic"))
    return (Policy(), tuple(lines)) if lines else (of_plain(Policy, table), ())


def _problem(name: str, value: Any) -> str:  # noqa: ANN401 - whatever TOML holds
    """Return the end of a sentence on what is wrong with a setting; "" if nothing is."""
    if name not in Policy.__struct_fields__:
        return "is not a setting"
    if name == "enabled":
        return "" if isinstance(value, bool) else "must be true or false"
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        kinds = (int,) if isinstance(low, int) else (int, float)
        is_right = isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
        whole = "a whole number" if isinstance(low, int) else "a number"
        return "" if is_right else f"must be {whole} from {low:g} to {high:g}"
    is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if name == "rules":
        return (
            "" if is_list and value and set(value) <= set(_RULES) else f"must be some of {', '.join(_RULES)}"
        )
    return "" if is_list else "must be a list of kinds of attacks, as in docs/JSON.md"
