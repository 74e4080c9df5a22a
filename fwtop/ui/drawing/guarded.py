"""Widgets and screens whose faults don't end the program: the application tells of them in one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from textual._callback import invoke
from textual.dom import DOMNode
from textual.message import Message
from textual.message_pump import MessagePump
from textual.worker import Worker

Begin = Callable[..., object]  # Guarded.begin


class Survivor(Protocol):
    """What the application does about faults."""

    def survive(self, error: Exception) -> str:
        """Write a crash log, tell of the error in one line, and return that line."""

    def drawing_failed(self, what: str, error: Exception) -> None:
        """Survive unless the same drawing fails for the second time in a row."""

    def drawn(self, what: str) -> None:
        """Note that a drawing succeeded."""


class Guarded(MessagePump):
    """Survives what its handlers raise, where Textual ends the widget's message loop and the program."""

    @property
    def _survivor(self) -> Survivor:
        return cast(Survivor, self.app)

    def survive(self, error: Exception) -> str:
        """Have the application tell of an error; return the line that it shows."""
        return self._survivor.survive(error)

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Go on after what fails inside."""
        try:
            yield
        except Exception as error:
            self.survive(error)

    @contextmanager
    def drawing(self, what: str) -> Iterator[None]:
        """Go on after a drawing that fails, unless it failed the last time, too."""
        try:
            yield
        except Exception as error:
            self._survivor.drawing_failed(what, error)
        else:
            self._survivor.drawn(what)

    def begin(
        self, work: Callable[..., Awaitable[object]], *given: object, group: str, exclusive: bool = False
    ) -> Worker[None]:
        """Run a function beside everything else, in place of what still runs in an `exclusive` group.

        A coroutine made here would never be awaited if the program ended before its turn.
        """

        async def run() -> None:
            await work(*given)

        return cast(DOMNode, self).run_worker(run, group=group, exclusive=exclusive)

    async def _dispatch_message(self, message: Message) -> None:
        with self.surviving():
            await super()._dispatch_message(message)

    async def _flush_next_callbacks(self) -> None:
        callbacks = self._next_callbacks.copy()
        self._next_callbacks.clear()
        for callback in callbacks:
            with self.surviving(), self.prevent(*callback._prevent):
                await invoke(callback.callback)
