"""Values of the model as JSON, MessagePack and plain data: prefixes as text, bytes of rules as hex.

What is written follows the annotations: a field added to a class needs no change here. Readers use defaults
for fields that are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fwtop.model.addresses.address import Prefix

_T = TypeVar("_T")


class FieldError(ValueError):
    """A value that does not fit its class; `field` names the one that is wrong, None: all of it."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


if TYPE_CHECKING:
    Hex = bytes
else:

    class Hex(bytes):
        """Bytes that are written as hexadecimal digits; msgspec would write base64."""


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return a value as data for JSON: dicts, lists, texts and numbers."""
    return msgspec.json.decode(to_json(value))


def of_plain(cls: type[_T], data: object) -> _T:
    """Return the value that `plain` returned data of; raises FieldError naming the field that is wrong."""
    try:
        return msgspec.convert(data, cls, str_keys=True, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise _wrong(str(error), cls) from None


def to_json(value: object) -> bytes:
    """Return a value as JSON."""
    return _TO_JSON.encode(value)


def of_json(cls: type[_T], data: bytes | str) -> _T:
    """Return the value that JSON holds; raises ValueError naming the field that is wrong."""
    try:
        return msgspec.json.decode(data, type=cls, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise _wrong(str(error), cls) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("not JSON") from None


def pack(value: object) -> bytes:
    """Return a value as MessagePack."""
    return _TO_MSGPACK.encode(value)


def unpack(cls: type[_T], data: bytes) -> _T:
    """Return the value that `pack` wrote; raises ValueError."""
    return msgspec.msgpack.decode(data, type=cls, dec_hook=_read)


def _written(value: Any) -> Any:  # noqa: ANN401 - what msgspec doesn't know
    if isinstance(value, Prefix):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Sequence):  # the rows of a long list
        return list(value)
    if hasattr(value, "item"):  # aggregation may leave numpy scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be written")


def _packed(value: Any) -> Any:  # noqa: ANN401 - what msgspec doesn't know
    # As bytes, because fields that are written as bytes may hold those of a rule, too
    return bytes(value) if isinstance(value, bytes) else _written(value)


def _read(wanted: type, value: Any) -> Any:  # noqa: ANN401 - whatever the annotation says
    if wanted not in (Prefix, Hex):
        raise NotImplementedError(f"{wanted} can't be read")  # a mistake of ours
    if wanted is Hex and isinstance(value, bytes):  # MessagePack has them
        return Hex(value)
    if not isinstance(value, str):
        raise ValueError("Expected `str`")
    if wanted is Prefix:
        return Prefix.parse(value)
    try:
        return Hex(bytes.fromhex(value))
    except ValueError:
        raise ValueError("Expected `bytes in hexadecimal`") from None


_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$")
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _wrong(message: str, cls: Any) -> FieldError:  # noqa: ANN401 - a type
    """Return an error of msgspec in words, with the field that it is about."""
    found = _PLACE.search(message)
    where, told = (found[1], message[: found.start()]) if found is not None else ("", message)
    if found := re.fullmatch(r"Object missing required field `(.+)`", told):
        where = _within(where, found[1])
        return FieldError(f"{where} is missing", where)
    if found := re.fullmatch(r"Object contains unknown field `(.+)`", told):
        known, where = ", ".join(_choices(cls, where)) or "none", _within(where, found[1])
        return FieldError(f"{where} is unknown; there are {known}", where)
    return FieldError(_in_words(told, where, cls), where or None)


def _in_words(told: str, where: str, cls: Any) -> str:  # noqa: ANN401 - a type
    """Return an error of msgspec as the end of a sentence that begins with the field: no names of types."""
    if told.startswith("Invalid enum value"):
        return f"{where or 'it'} must be one of {', '.join(_choices(cls, where))}"
    if found := re.fullmatch(r"Expected (`[^`]*`)(.*?)(?:, got .*)?", told):
        wanted = " or ".join(_TYPES.get(name, name) for name in found[1].strip("`").split(" | "))
        return f"{where or 'it'} must be {wanted}{found[2]}"
    return f"{where}: {told}" if where else told


def _within(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _choices(cls: Any, where: str) -> list[str]:  # noqa: ANN401 - a type
    """Return the fields of the Struct at a place, or the values of its enumeration."""
    info = _not_none(msgspec.inspect.type_info(cls))
    for step in re.findall(r"\[[^]]*\]|\w+", where):
        if step.startswith("["):
            found = getattr(info, "item_type", None) or info.value_type
        else:
            found = next(item.type for item in info.fields if item.name == step)
        info = _not_none(found)
    if hasattr(info, "fields"):
        return [item.name for item in info.fields]
    return [*map(str, info.cls if isinstance(info, msgspec.inspect.EnumType) else info.values)]


def _not_none(info: Any) -> Any:  # noqa: ANN401 - any of msgspec.inspect
    if not isinstance(info, msgspec.inspect.UnionType):
        return info
    return next(item for item in info.types if not isinstance(item, msgspec.inspect.NoneType))


_TO_JSON = msgspec.json.Encoder(enc_hook=_written)
_TO_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_packed)
