"""Dataclasses whose methods are compiled when they are first called behave as others do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from dataclasses import dataclass, field

import pytest

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="later ones compile all methods at once")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    x: int
    tags: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = "?"


def is_compiled(owner: type, method: str) -> bool:
    return "fwtop/model/late" not in vars(owner)[method].__code__.co_filename


def test_a_method_is_compiled_at_its_first_call_and_then_takes_its_place() -> None:
    @dataclass(frozen=True)
    class Fresh:
        x: int

    assert is_compiled(Fresh, "__init__")
    assert not is_compiled(Fresh, "__eq__")
    assert Fresh(1) == Fresh(1) != Fresh(2)
    assert is_compiled(Fresh, "__eq__")
    assert not is_compiled(Fresh, "__hash__")
    assert vars(Fresh)["__eq__"].__qualname__ == f"{Fresh.__qualname__}.__eq__"


@pytest.mark.parametrize("call", range(2))  # the first and a later one
def test_values_behave_as_ever(call: int) -> None:
    a, b = Point(1, ("x",)), Named(1, ("x",), "n")
    assert (a == Point(1, ("x",)), a == b, b == Named(1, ("x",), "n"), a == 1) == (True, False, True, False)
    assert hash(a) == hash((1, ("x",)))
    assert len({a, Point(1, ("x",)), b}) == 2
    assert (repr(a), repr(b)) == ("Point(x=1)", "Named(x=1, name='n')")
    assert Point(1) < Point(2)
    assert dataclasses.replace(b, x=2) == Named(2, ("x",), "n")
    assert copy.deepcopy(b) == pickle.loads(pickle.dumps(b)) == b  # noqa: S301 - made here
    for value in (a, b):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
            value.x = 3  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
            del value.x
