"""Compile while the operator still reads the preview: that is most of an XDP rule's first half second."""

from __future__ import annotations

from typing import Any

from fwtop.mitigate.xdp_child import Running


class Warmer:
    """One child at a time that compiles rules which may be installed next; its code goes into the cache."""

    def __init__(self) -> None:
        self._child: Running | None = None
        self._code: object = None  # what its code depends on

    def start(self, order: dict[str, Any]) -> None:
        """Begin, unless another is at work: then that one goes on. Raises FwtopError, OSError."""
        if self._child is not None and not self._child.over:
            return
        self._drop()
        self._child, self._code = Running(order, {}), _code(order)

    def spare(self, order: dict[str, Any]) -> None:
        """End a child that is at work on anything but the rules of this order, which would wait for it."""
        if _code(order) != self._code:
            self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close(patience=0.0)
        self._child, self._code = None, None


def _code(order: dict[str, Any]) -> object:
    """Return what the compiled code depends on: all but numbers, times and words."""
    kept = ("kind", "match", "limit")
    rules = sorted(
        (item["slot"], [(name, item["rule"][name]) for name in kept], item["listed"])
        for item in order["rules"]
    )
    return repr(rules), order["allow"]
