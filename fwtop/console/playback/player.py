"""The player of recordings: its position runs by the wall clock, its thread loads what stands there."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from fwtop.console.controls import ReadOnlyControls
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import EventKind, Mark, PastAttack
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.feed import PlayerState
from fwtop.ui.lists.history import Past

OnSnapshot = Callable[[Snapshot], None]
OnError = Callable[[Exception], None]
_JOIN_SECONDS = 1.0
_FRAME_SECONDS = 0.25  # the screen draws no faster
_GAP_SECONDS = 2.0  # of the wall clock: a longer gap in the recording is skipped
_AGAIN_SECONDS = 1.5  # going back while playing means the event before, if the last one passed just now
_MOST_STEPS = 1_000
_MOST_MOVES = 20


class Frame(Struct, frozen=True):
    """What a recording shows at a time."""

    snapshot: Snapshot
    past: tuple[Past, ...] = ()


class Reel(Protocol):
    """An open recording; used in the player's thread only."""

    @property
    def note(self) -> str:
        """Return what limits this recording; "" if nothing."""

    def span(self) -> tuple[float, float]:
        """Return when it begins and ends; a session that is being recorded grows."""

    def marks(self) -> tuple[Mark, ...]:
        """Return its events by time."""

    def whole(self) -> Frame | None:
        """Return one view of all of it, shown first; None if there is none."""

    def beside(self, at: float, count: int) -> float | None:
        """Return the time of the frame `count` after (before, if negative) a time, or of the last that way.

        None if there is none.
        """

    def locate(self, at: float) -> float:
        """Return the time of the frame that it shows at a time."""

    def frame(self, at: float) -> Frame | None:
        """Return that frame; None if nothing there can be read."""


Recording = Callable[[], AbstractContextManager[Reel]]


class Playhead(Struct):
    """The position: fixed while paused, else running by the wall clock up to the end."""

    begins: float
    ends: float
    speed: float
    playing: bool = True
    _position: float = 0.0
    _since: float = 0.0  # wall clock at which it was there

    def position(self, wall: float) -> float:
        """Return the position now."""
        moved = (wall - self._since) * self.speed if self.playing else 0.0
        return min(max(self._position + moved, self.begins), self.ends)

    def seek(self, at: float, wall: float) -> None:
        """Go to a time."""
        self._position, self._since = min(max(at, self.begins), self.ends), wall

    def play(self, playing: bool, wall: float) -> None:
        """Play or pause."""
        self.seek(self.position(wall), wall)
        self.playing = playing

    def set_speed(self, speed: float, wall: float) -> None:
        """Go on from here at another speed."""
        self.seek(self.position(wall), wall)
        self.speed = speed


class _Move(Struct, frozen=True):
    """What keys asked for: to go to a time, or on by so many snapshots or events."""

    verb: str  # seek, step, skip
    count: int = 0
    at: float = 0.0


class StoredFeed:
    """Plays a recording: a feed whose snapshots are those at the player's position."""

    session = ""  # nothing new is stored
    is_new = False

    def welcomed(self) -> None:
        """Remember nothing: nobody is greeted."""

    def __init__(
        self,
        recording: Recording,
        controls: ReadOnlyControls,
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.controls = controls
        self._recording = recording
        self._clock = clock
        self._changed = threading.Condition()
        self._head = Playhead(0.0, 0.0, speed)
        self._moves: list[_Move] = []  # what keys asked for since the thread last looked
        self._woken = False  # something changed since the thread last slept
        self._state: PlayerState | None = None  # all but what the playhead knows
        self._frame: Frame | None = None
        self._shown_at: float | None = None  # where that frame stands; None: it is the whole recording
        self._stop = False
        self._thread: threading.Thread | None = None

    # -- the feed

    @property
    def player(self) -> StoredFeed:
        """The feed is its own player."""
        return self

    def start(self, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        """Begin playing; the screen keeps showing the last snapshot."""

        def play() -> None:
            try:
                # Opened and closed here: SQLite refuses any other thread.
                with self._recording() as reel:
                    self._run(reel, on_snapshot, on_error)
            except Exception as error:
                on_error(error)

        self._thread = threading.Thread(target=play, name="play", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End playing."""
        with self._waking():
            self._stop = True
        self.controls.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    # -- the player, called by the screen

    @property
    def state(self) -> PlayerState | None:
        """Return where the player stands now."""
        with self._changed:
            if self._state is None:
                return None
            head = self._head
            return replace(
                self._state,
                begins=head.begins,
                ends=head.ends,
                position=head.position(self._clock()),
                playing=head.playing,
                speed=head.speed,
            )

    def shown(self) -> Snapshot:
        """Return the snapshot that was delivered last."""
        if self._frame is None:
            raise FwtopError("nothing is shown yet")
        return self._frame.snapshot

    def past(self) -> tuple[Past, ...]:
        """Return the minutes before the frame shown."""
        return self._frame.past if self._frame is not None else ()

    def past_attacks(self) -> tuple[PastAttack, ...]:
        """Return nothing: only what is live is compared with other sessions."""
        return ()

    def play(self, playing: bool) -> None:
        """Play or pause."""
        with self._waking():
            self._head.play(playing, self._clock())

    def set_speed(self, speed: float) -> None:
        """Play at so many times real time."""
        with self._waking():
            self._head.set_speed(speed, self._clock())

    def seek(self, at: float) -> None:
        """Go to a time; it replaces what earlier keys asked for."""
        with self._waking():
            self._moves = [_Move("seek", at=at)]

    def step(self, count: int) -> None:
        """Pause and go to a frame before or after."""
        with self._waking():
            self._head.play(playing=False, wall=self._clock())
            self._move("step", count)

    def skip(self, count: int) -> None:
        """Go to an event before or after."""
        with self._waking():
            self._move("skip", count)

    def _move(self, verb: str, count: int) -> None:
        """Add to what the thread hasn't done yet; a held key makes one long move."""
        if self._moves and self._moves[-1].verb == verb:
            count += self._moves.pop().count
        self._moves = [*self._moves, _Move(verb, max(min(count, _MOST_STEPS), -_MOST_STEPS))][-_MOST_MOVES:]

    @contextmanager
    def _waking(self) -> Iterator[None]:
        with self._changed:
            yield
            self._woken = True
            self._changed.notify()

    # -- the thread

    def _run(self, reel: Reel, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        has_whole = reel.whole() is not None
        self._open(reel, has_whole=has_whole)
        while not self._stop:
            try:
                self._turn(reel, on_snapshot, has_whole=has_whole)
            except (FwtopError, MemoryError):
                raise
            except Exception as error:  # of what stands here: elsewhere there may be something to show
                on_error(error)
                with self._changed:
                    self._head.play(playing=False, wall=self._clock())
                self._wait(None)

    def _turn(self, reel: Reel, on_snapshot: OnSnapshot, *, has_whole: bool) -> None:
        """Show what stands at the position, and wait until that is something else."""
        shown = self._frame
        if self._obey(reel, has_whole=has_whole):
            at, frame = None, reel.whole()
        else:
            at = reel.locate(self._position())
            frame = reel.frame(at) if at != self._shown_at else shown
        if frame is not None and frame is not shown:
            self._frame = frame
            on_snapshot(frame.snapshot)
        self._shown_at = at
        if at is None:
            self._wait(None)
        else:
            self._await_next(reel, at)

    def _open(self, reel: Reel, *, has_whole: bool) -> None:
        begins, ends = reel.span()
        marks = reel.marks()
        with self._changed:
            head = self._head
            head.begins, head.ends = begins, ends
            head.playing = head.playing and not has_whole
            head.seek(begins, self._clock())
            self._state = PlayerState(begins, ends, begins, marks=marks, whole=has_whole, note=reel.note)

    def _position(self) -> float:
        with self._changed:
            return self._head.position(self._clock())

    def _obey(self, reel: Reel, *, has_whole: bool) -> bool:
        """Move the head as the keys asked; tell whether the whole recording is to be shown, not a moment."""
        ends = reel.span()[1]
        with self._changed:
            moves, self._moves = self._moves, []
            head, state = self._head, self._state
            head.ends = ends
            at, playing = head.position(self._clock()), head.playing
        assert state is not None  # noqa: S101 - set by _open
        whole = state.whole and not playing
        for move in moves:
            again = _AGAIN_SECONDS * head.speed if playing else 0.0
            found = _target(reel, state.marks, move, at - whole, again)
            whole = has_whole and found is None and move.verb == "skip" and move.count < 0
            at = head.begins if whole else at if found is None else found
        with self._changed:
            head.playing = head.playing and not whole
            if moves:
                head.seek(at, self._clock())
            self._state = replace(state, whole=whole)
        return whole

    def _await_next(self, reel: Reel, at: float) -> None:
        """Wait until the next frame is due, or the screen wants something; pause at the end."""
        following = reel.beside(at, 1)
        with self._changed:
            head = self._head
            if following is None and not self._woken:
                head.play(playing=False, wall=self._clock())
            playing, speed = head.playing, head.speed
            ahead = following - head.position(self._clock()) if following is not None else 0.0
        if not playing or following is None:
            self._wait(None)
            return
        gap = (following - at) / speed > _GAP_SECONDS
        woken = self._wait(_GAP_SECONDS if gap else max(ahead / speed, _FRAME_SECONDS))
        if gap and not woken:
            with self._changed:
                head.ends = max(head.ends, following)
                head.seek(following, self._clock())

    def _wait(self, seconds: float | None) -> bool:
        """Sleep so long, or until the screen wants something; tell whether it does."""
        with self._changed:
            if not self._woken:
                self._changed.wait(seconds)
            woken, self._woken = self._woken, False
            return woken


def _target(reel: Reel, marks: Sequence[Mark], move: _Move, at: float, again: float) -> float | None:
    """Return the time to which a move from a time leads; None: nowhere."""
    if move.verb == "seek":
        return move.at
    if not move.count:
        return None
    if move.verb == "step":
        return reel.beside(reel.locate(at), move.count)
    return _event(marks, at, move.count, again)


def _event(marks: Sequence[Mark], at: float, count: int, again: float) -> float | None:
    """Return the time of the event so many after (before, if negative) a time; None: none is there.

    Proposals don't count: they follow other events. Going back passes over an event less than `again` ago.
    """
    times = sorted({mark.at for mark in marks if mark.event.kind is not EventKind.RULE_PROPOSED})
    if count > 0:
        first = bisect_right(times, at)
        return times[min(first + count, len(times)) - 1] if first < len(times) else None
    place = bisect_left(times, at - again) + count
    return times[place] if place >= 0 else None
