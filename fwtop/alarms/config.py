"""/etc/fwtop/alarms.toml: where alarms go, and how long a condition must last to raise one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from fwtop.alarms.mail import is_address
from fwtop.alarms.message import EVENTS
from fwtop.model.config_file import ConfigText, table_of
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.text import safe_text

FILE = "/etc/fwtop/alarms.toml"
_MAX_WORDS = 64


class AlarmConfig(Struct, frozen=True):
    """The settings; docs/alarms.toml documents each."""

    journal: bool = True
    command: tuple[str, ...] = ()  # an argv; nothing passes through a shell
    command_seconds: float = 10.0
    webhook: str = ""  # a URL
    webhook_secret_file: str = ""  # its content signs what is posted
    webhook_seconds: float = 10.0
    mail_to: tuple[str, ...] = ()
    user: str = CONSOLE_USER  # whom the command runs as; never root
    events: tuple[str, ...] = tuple(name for name in EVENTS if name != "test")
    began_seconds: float = 3.0
    ended_seconds: float = 30.0
    changed_factor: float = 2.0
    changed_seconds: float = 60.0

    def for_console(self) -> AlarmConfig:
        """Return what decides on alarms, without where they go: URLs often hold a password."""
        return replace(self, command=(), webhook="", webhook_secret_file="", mail_to=())


def read_alarms(file: ConfigText | None) -> tuple[AlarmConfig, tuple[str, ...]]:
    """Return the settings, and a line for each wrong one, which has its default."""
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
    if name not in _SETTINGS:
        raise ValueError("is not a setting")
    is_right, wanted = _SETTINGS[name]
    if not is_right(value):
        raise ValueError(f"must be {wanted}")
    if isinstance(value, list):
        return tuple(value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _number(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    def is_right(value: Any) -> bool:  # noqa: ANN401
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    return is_right, f"a number from {low:g} to {high:g}"


def _is_words(value: Any) -> bool:  # noqa: ANN401
    return (
        isinstance(value, list)
        and len(value) <= _MAX_WORDS
        and all(isinstance(word, str) and "\0" not in word for word in value)
    )


def _is_command(value: Any) -> bool:  # noqa: ANN401
    return _is_words(value) and bool(value) and value[0].startswith("/")


def _is_url(value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()) or " " in value:
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_path(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, str) and value.startswith("/") and "\0" not in value


_EVENTS = AlarmConfig().events
_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "journal": (lambda value: isinstance(value, bool), "true or false"),
    "command": (_is_command, "a list of words, the first a program's full path"),
    "command_seconds": _number(0.1, 300.0),
    "webhook": (_is_url, "a URL that begins with https:// or http://"),
    "webhook_secret_file": (_is_path, "the full path of a file"),
    "webhook_seconds": _number(0.1, 60.0),
    "mail_to": (
        lambda value: _is_words(value) and all(map(is_address, value)),
        "a list of plain e-mail addresses",
    ),
    "user": (
        lambda value: isinstance(value, str) and value not in ("", "root"),
        "the name of a user other than root",
    ),
    "events": (
        lambda value: _is_words(value) and set(value) <= set(_EVENTS),
        f"a list of {', '.join(_EVENTS)}",
    ),
    "began_seconds": _number(0.0, 3600.0),
    "ended_seconds": _number(0.0, 86400.0),
    "changed_factor": _number(1.1, 1000.0),
    "changed_seconds": _number(1.0, 86400.0),
}
