"""One packet taken apart, as sanitised text: what the detail view shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One protocol layer with its fields in the order of the wire."""

    name: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Dissection:
    """The layers from the outside in; `problem` says why there are none, or not all ("" if all)."""

    layers: tuple[Layer, ...] = ()
    problem: str = ""
