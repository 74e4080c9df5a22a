"""The player keys: play, pause, speed, steps and jumps to events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fwtop.ui.feed import SPEEDS, Player, PlayerState


class PlayerActions:
    """Carries out the player keys; independent of widgets."""

    def __init__(self, player: Player | None, say: Callable[[str], Any]) -> None:
        self._player = player
        self._say = say

    def toggle(self) -> None:
        """Play or pause; a recording isn't played again by itself."""
        found = self._found()
        if found is None:
            return
        player, state = found
        if not state.playing and not state.whole and state.position >= state.ends:
            self._say("this is the end of the recording: { or a click on the bar goes back")
            return
        player.play(not state.playing)

    def step(self, count: int) -> None:
        """Go to the snapshot before or after."""
        found = self._found()
        if found is not None:
            found[0].step(count)

    def faster(self, steps: int) -> None:
        """Change the speed to the next one up or down."""
        found = self._found()
        if found is None:
            return
        player, state = found
        others = [speed for speed in SPEEDS if (speed > state.speed if steps > 0 else speed < state.speed)]
        if not others:
            self._say(f"{state.speed:g}× is the {'highest' if steps > 0 else 'lowest'} speed")
            return
        player.set_speed(min(others) if steps > 0 else max(others))

    def skip(self, count: int) -> None:
        """Go to the event before or after."""
        found = self._found()
        if found is not None:
            found[0].skip(count)

    def seek(self, at: float) -> None:
        """Go to a time."""
        found = self._found()
        if found is not None:
            found[0].seek(at)

    def _found(self) -> tuple[Player, PlayerState] | None:
        """Return the player and where it stands; say why if there is nothing to play."""
        state = self._player.state if self._player is not None else None
        if self._player is None or state is None:
            self._say("this key moves through recordings: fwtop replay, fwtop read")
            return None
        return self._player, state
