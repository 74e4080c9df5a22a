"""Lossless serialisation of snapshots and other frozen values of the model.

The encoding is derived from annotations: a field added to a class needs no change here. Each value is a row
in the order of its class's fields, whose names are stored once: a reader with other fields ignores unknown
ones and uses defaults for missing ones.
"""

from __future__ import annotations

import json
import types
import typing
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

from fwtop.model.traffic.snapshot import Snapshot

_FORMAT = 1
_ZLIB_LEVEL = 1  # level 6: a sixth smaller, three times as slow
_MAX_BYTES = 64 << 20  # of a decoded snapshot: bounds memory if a file is damaged
_SCALARS = (str, int, float, bool, type(None))

_Hint = Any  # an annotation: a class or a typing form
_Json = Any
_Value = Any
_Convert = Callable[[_Value], _Json]
_Names = tuple[tuple[str, tuple[str, ...]], ...]  # class names and their fields as written
_T = TypeVar("_T")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as compressed JSON, about 15 KB for a busy one."""
    return zlib.compress(_dump(snapshot_to_dict(snapshot)), _ZLIB_LEVEL)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode what `encode_snapshot` returned; raises ValueError on anything else."""
    return snapshot_from_dict(_load(data))


def snapshot_to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return data for JSON, from which `snapshot_from_dict` makes an equal snapshot."""
    return value_to_dict(snapshot)


def snapshot_from_dict(data: dict[str, Any]) -> Snapshot:
    """Decode what `snapshot_to_dict` returned; raises ValueError on anything else."""
    return value_from_dict(Snapshot, data)


def encode_value(value: object) -> bytes:
    """Encode any frozen value of the model as compressed JSON."""
    return zlib.compress(_dump(value_to_dict(value)), _ZLIB_LEVEL)


def decode_value(cls: type[_T], data: bytes) -> _T:
    """Decode a `cls` that `encode_value` encoded; raises ValueError on anything else."""
    return value_from_dict(cls, _load(data))


def value_to_dict(value: object) -> dict[str, Any]:
    """Return data for JSON of any frozen value of the model."""
    cls: _Hint = type(value)
    return {"format": _FORMAT, "fields": _field_names(cls), "row": _row_encoder(cls)(value)}


def value_from_dict(cls: type[_T], data: dict[str, Any]) -> _T:
    """Decode a `cls` from what `value_to_dict` returned; raises ValueError on anything else."""
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError("not a stored value of this format")
    try:
        names = tuple((name, tuple(listed)) for name, listed in data["fields"].items())
        return cast(_T, _row_decoder(cast(_Hint, cls), names)(data["row"]))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"a stored {cls.__name__} is damaged ({type(error).__name__})") from None


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), default=_numpy_scalar).encode()


def _load(data: bytes) -> dict[str, Any]:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("a stored value is cut short or too large")
        return cast(dict[str, Any], json.loads(text))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"a stored value is damaged ({type(error).__name__})") from None


def _numpy_scalar(value: _Value) -> _Json:
    # Aggregation may leave numpy scalars in fields.
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} can't be stored")


@cache
def _hints(cls: _Hint) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


@cache
def _field_names(cls: _Hint) -> dict[str, list[str]]:
    """Return the field names of `cls` and of all dataclasses that it contains, by class name."""
    found: dict[str, list[str]] = {}
    pending: list[Any] = [cls]
    while pending:
        hint = pending.pop()
        pending.extend(typing.get_args(hint))
        if is_dataclass(hint) and isinstance(hint, type) and hint.__name__ not in found:
            found[hint.__name__] = list(_hints(hint))
            pending.extend(_hints(hint).values())
    return found


# None is the identity: most fields are plain numbers and strings, which then cost nothing.


def _encoder(hint: _Hint, within: _Hint = None) -> _Convert | None:
    """Return the conversion of a field; `within` is the class whose it is, which may contain itself."""
    if hint is within and within is not None:
        return lambda value: _row_encoder(hint)(value)  # noqa: PLW0108 - it is being made now
    if is_dataclass(hint) and isinstance(hint, type):
        return _row_encoder(hint)
    if hint is bytes:
        return bytes.hex
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    return _container(hint, lambda inner: _encoder(inner, within), as_tuple=False)


@cache
def _row_encoder(cls: _Hint) -> _Convert:
    hints = _hints(cls)
    take = attrgetter(*hints)
    special = [(at, encode) for at, hint in enumerate(hints.values()) if (encode := _encoder(hint, cls))]
    if len(hints) == 1:
        only = special[0][1] if special else None
        return lambda value: [only(take(value)) if only else take(value)]

    def encode_row(value: _Value) -> list[_Json]:
        row = list(take(value))
        for at, encode in special:
            row[at] = encode(row[at])
        return row

    return encode_row


def _decoder(hint: _Hint, names: _Names, within: _Hint = None) -> _Convert | None:
    if hint is within and within is not None:
        return lambda value: _row_decoder(hint, names)(value)  # noqa: PLW0108 - it is being made now
    if is_dataclass(hint) and isinstance(hint, type):
        return _row_decoder(hint, names)
    if hint is bytes:
        return bytes.fromhex
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return _container(hint, lambda inner: _decoder(inner, names, within), as_tuple=True)


@cache
def _row_decoder(cls: _Hint, names: _Names) -> _Convert:
    hints, written = _hints(cls), dict(names)[cls.__name__]
    special = [
        (at, decode)
        for at, name in enumerate(written)
        if name in hints and (decode := _decoder(hints[name], names, cls))
    ]
    same = written == tuple(hints)
    known = [(at, name) for at, name in enumerate(written) if name in hints]

    def decode_row(row: list[_Json]) -> _Value:
        if len(row) != len(written):
            raise TypeError("row and fields differ")
        for at, decode in special:
            row[at] = decode(row[at])
        return cls(*row) if same else cls(**{name: row[at] for at, name in known})

    return decode_row


def _container(hint: _Hint, inner: Callable[[_Hint], _Convert | None], *, as_tuple: bool) -> _Convert | None:
    """Lift `inner` to sequences (decoded as tuples), string-keyed dicts and optional values."""
    if hint in _SCALARS:
        return None
    origin: _Hint = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _optional(hint, arguments, inner)
    if origin is dict and arguments[0] is str:
        convert = inner(arguments[1])
        return (lambda items: {key: convert(item) for key, item in items.items()}) if convert else None
    if origin is Sequence or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return _sequence(inner(arguments[0]), as_tuple=as_tuple)
    if origin is tuple and all(argument in _SCALARS for argument in arguments):
        return _sequence(None, as_tuple=as_tuple)
    raise TypeError(f"the codec has no form for {hint}")


def _optional(
    hint: _Hint, arguments: tuple[_Hint, ...], inner: Callable[[_Hint], _Convert | None]
) -> _Convert | None:
    given = [argument for argument in arguments if argument is not type(None)]
    if all(argument in _SCALARS for argument in given):
        return None
    if len(given) != 1:
        raise TypeError(f"the codec has no form for {hint}")
    convert = inner(given[0])
    return (lambda value: None if value is None else convert(value)) if convert else None


def _sequence(convert: _Convert | None, *, as_tuple: bool) -> _Convert | None:
    if not as_tuple:
        return (lambda items: [convert(item) for item in items]) if convert else None
    if convert is None:
        return tuple
    return lambda items: tuple([convert(item) for item in items])
