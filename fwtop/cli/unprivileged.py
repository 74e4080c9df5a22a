"""Running one function as the console's user: root must not parse files that this user can write."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TypeVar, cast

from fwtop.console.privileges import drop_privileges
from fwtop.model.errors import FwtopError

T = TypeVar("T")


def run_unprivileged(function: Callable[[], T]) -> T:
    """Call `function` in a child without privileges and return its JSON-ready result.

    A FwtopError in the child is raised here again. Not being root, it is called in place.
    """
    if os.geteuid() != 0:
        return function()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _serve(function, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    try:
        outcome = json.loads(message)
    except ValueError:
        raise FwtopError("reading as user fwtop failed without a word; nothing was changed") from None
    if "error" in outcome:
        raise FwtopError(str(outcome["error"]), int(outcome["code"]))
    return cast(T, outcome["result"])


def _serve(function: Callable[[], object], writing: int) -> None:
    status = 1
    try:
        drop_privileges()
        try:
            outcome: dict[str, object] = {"result": function()}
        except FwtopError as error:
            outcome = {"error": str(error), "code": error.code}
        with open(writing, "wb") as pipe:
            pipe.write(json.dumps(outcome).encode())
        status = 0
    except BaseException as error:
        print(f"fwtop: {type(error).__name__} while reading as user fwtop", file=sys.stderr)
    finally:
        os._exit(status)
