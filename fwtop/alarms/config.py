"""/etc/fwtop/alarms.toml: whom alarms go to, and how long something must last to be one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fwtop.alarms.message import EVENTS
from fwtop.model.config_file import ConfigText, table_of
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.text import safe_text

FILE = "/etc/fwtop/alarms.toml"
_MAX_WORDS = 64


@dataclass(frozen=True, slots=True)
class AlarmConfig:
    """The settings; docs/alarms.toml documents each."""

    journal: bool = True
    command: tuple[str, ...] = ()  # an argv; nothing passes through a shell
    command_seconds: float = 10.0
    user: str = CONSOLE_USER  # whom the command runs as; never root
    events: tuple[str, ...] = tuple(name for name in EVENTS if name != "test")
    began_seconds: float = 3.0
    ended_seconds: float = 30.0
    changed_factor: float = 2.0
    changed_seconds: float = 60.0

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AlarmConfig:
        """Rebuild the settings from asdict() and JSON."""
        return cls(**data | {name: tuple(data[name]) for name in ("command", "events")})


_NUMBERS = {
    "command_seconds": (0.1, 300.0),
    "began_seconds": (0.0, 3600.0),
    "ended_seconds": (0.0, 86400.0),
    "changed_factor": (1.1, 1000.0),
    "changed_seconds": (1.0, 86400.0),
}


def read_alarms(file: ConfigText | None) -> tuple[AlarmConfig, tuple[str, ...]]:
    """Return the settings, and a line for each that is wrong and so has its default."""
    if file is None:
        return AlarmConfig(), ()
    table, wrong = table_of(file)
    lines, found = list(wrong), {}
    for name, value in table.items():
        try:
            found[name] = _checked(name, value)
        except ValueError as error:
            lines.append(safe_text(f"{file.path}: {name} {error}; it is ignored"))
    return AlarmConfig(**found), tuple(lines)


def _checked(name: str, value: Any) -> Any:  # noqa: ANN401 - whatever TOML holds
    """Return a setting's value; raises ValueError with the end of a sentence."""
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return float(value)
    if name == "journal" and isinstance(value, bool):
        return value
    if name == "command":
        if not _is_words(value) or not value[:1] or not value[0].startswith("/") or len(value) > _MAX_WORDS:
            raise ValueError("must be a list of words, the first a program's full path")
        return tuple(value)
    if name == "events":
        if not _is_words(value) or not set(value) <= set(AlarmConfig().events):
            raise ValueError(f"must be a list of {', '.join(AlarmConfig().events)}")
        return tuple(value)
    if name == "user":
        if not isinstance(value, str) or value in ("", "root"):
            raise ValueError("must be the name of a user other than root")
        return value
    raise ValueError("must be true or false" if name == "journal" else "is not a setting")


def _is_words(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list) and all(isinstance(word, str) and "\0" not in word for word in value)
