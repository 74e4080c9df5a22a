"""An orderly end on SIGINT, SIGTERM and SIGHUP, for verbs that have a lab to take down."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from fwtop.model.errors import FwtopError


class _Ended(BaseException):
    """A signal asked the lab to end; BaseException, so that nothing on the way catches it."""


class EndingSignals:
    """Turn SIGTERM and SIGHUP into an exception that unwinds through the clean-up, once."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._end) for number in _SIGNALS}

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        for ignored in _SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise _Ended(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, _Ended):
            name = signal.Signals(error.args[0]).name
            raise FwtopError(f"ended by {name}; the lab was taken down") from None


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
