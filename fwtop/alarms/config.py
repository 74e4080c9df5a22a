"""/etc/fwtop/alarms.toml: where alarms go, and how long a condition must last to raise one."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from fwtop.alarms.message import EVENTS, is_address
from fwtop.model.files import ConfigText
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.settings_file import must, read, some_of

FILE = "/etc/fwtop/alarms.toml"
_MAX_WORDS = 64
_EVENTS = tuple(name for name in EVENTS if name != "test")


def _are_words(value: tuple[str, ...]) -> bool:
    return len(value) <= _MAX_WORDS and not any("\0" in word for word in value)


def _is_command(value: tuple[str, ...]) -> bool:
    return _are_words(value) and bool(value) and value[0].startswith("/")


def _are_addresses(value: tuple[str, ...]) -> bool:
    return _are_words(value) and all(map(is_address, value))


def _is_url(value: str) -> bool:
    if not (value.isascii() and value.isprintable()) or " " in value:
        return False
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def _is_path(value: str) -> bool:
    return value.startswith("/") and "\0" not in value


class AlarmConfig(Struct, frozen=True):
    """The settings; docs/alarms.toml documents each."""

    journal: bool = True
    # an argv; nothing passes through a shell
    command: Annotated[
        tuple[str, ...], must("a list of words, the first a program's full path", _is_command)
    ] = ()
    command_seconds: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    webhook: Annotated[str, must("a URL that begins with https:// or http://", _is_url)] = ""
    # its content signs what is posted
    webhook_secret_file: Annotated[str, must("the full path of a file", _is_path)] = ""
    webhook_seconds: Annotated[float, Meta(ge=0.1, le=60)] = 10.0
    mail_to: Annotated[tuple[str, ...], must("a list of plain e-mail addresses", _are_addresses)] = ()
    # whom the command runs as
    user: Annotated[
        str, must("the name of a user other than root", lambda value: value not in ("", "root"))
    ] = CONSOLE_USER
    events: Annotated[tuple[str, ...], some_of(_EVENTS)] = _EVENTS
    began_seconds: Annotated[float, Meta(ge=0, le=3600)] = 3.0
    ended_seconds: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    changed_factor: Annotated[float, Meta(ge=1.1, le=1000)] = 2.0
    changed_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0

    def for_console(self) -> AlarmConfig:
        """Return what decides on alarms, without where they go: URLs often hold a password."""
        return replace(self, command=(), webhook="", webhook_secret_file="", mail_to=())


def read_alarms(file: ConfigText | None) -> tuple[AlarmConfig, tuple[str, ...]]:
    """Return the settings, and a line for each wrong one, which has its default."""
    found = read(AlarmConfig, file)
    return found.value, found.lines()
