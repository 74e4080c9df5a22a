"""A monkey at the keyboard: presses, clicks and resizes while the world behind the screen changes.

`PYTHONPATH=. .venv/bin/python tests/ui/screen_monkey.py STEPS [SEED]` makes so many steps; what came before a
failure is told. A step is a tuple of a verb and numbers or texts, whoever makes it: Hypothesis or a seed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from screen_changes import MODES, MonkeyControls, MonkeyPlayer, World
from screen_fakes import FakeFeed
from screen_parts import NOW
from screen_run import Run, running
from screen_world import trends
from textual import events
from textual.geometry import Size

from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Lines, frame
from fwtop.ui.settings import read_settings

Step = tuple[Any, ...]
SIZES = ((80, 24), (60, 15), (100, 30), (132, 34), (200, 50), (400, 120), (1, 1), (24, 8), (59, 24), (61, 16))
WORLD = (
    "scene",
    "begin",
    "end",
    "letters",
    "rule",
    "state",
    "gone",
    "guardian",
    "note",
    "table",
    "judged",
    "quiet",
)
MOODS = (
    "answer",
    "fine",
    "failing",
    "slow",
    "empty",
    "harm",
    "refused",
    "force",
    "machine",
    "readonly",
    "player",
)
SECONDS = (0.2, 1.0, 4.0, 31.0, 700.0, -40.0)
_TYPED = ("1", "0", ".", "/", "a", "z", "[", "é", "漢", "\u202e", "\x1b")
_IN_DIALOGS = (
    "escape",
    "enter",
    "tab",
    "shift+tab",
    "up",
    "down",
    "left",
    "right",
    "backspace",
    "ctrl+u",
    "ctrl+w",
)
KEYS = (
    *dict.fromkeys(key for row in KEY_MAP.actions for key in row.keys),
    *_IN_DIALOGS,
    *_TYPED,
    *("ctrl+l", "f5", "delete", "insert", "ctrl+q", "ctrl+@"),
)
LINES = (
    "undo 7",
    "tab path",
    "filter 203",
    "theme light",
    "theme ansi",
    "slow on",
    "slow off",
    "block 192.0.2.0/24",
)
LINES += (
    "sort pps",
    "view prefix",
    "only A",
    "only all",
    "graph bits",
    "keep 7",
    "block x",
    "proposal 2",
    "why 5",
)
_ESCAPES = 2  # that close a dialog; the first may discard what is being typed
_REMEMBERED = 40


class MonkeyError(AssertionError):
    """The screen did what it must not."""


class Monkey:
    """Makes steps on a running screen, and looks after each at what must hold."""

    def __init__(self, run: Run, world: World, controls: MonkeyControls, seed: int = 0) -> None:
        self.run = run
        self.world = world
        self.controls = controls
        self.done: deque[Step] = deque(maxlen=_REMEMBERED)
        self.counts: Counter[str] = Counter()
        self.left = 0  # times that it wanted to quit
        self._said = 0
        self._painted = 0
        run.app.exit = self._leave  # type: ignore[method-assign]
        message = run.app.main.bars.message
        say = message.say

        def count(*given: Any, **named: Any) -> None:
            self._said += 1
            say(*given, **named)

        run.app.main.bars.message = _Counting(message, count)  # type: ignore[assignment]
        for lines in run.app.main.query(Lines):
            self._count_paint(lines)

    def _leave(self, *_: object, **__: object) -> None:
        self.left += 1

    def _count_paint(self, lines: Lines) -> None:
        refresh = lines.refresh

        def count(*regions: Any, **named: Any) -> Any:
            self._painted += 1
            return refresh(*regions, **named)

        lines.refresh = count  # type: ignore[method-assign]

    # -- steps

    async def do(self, step: Step) -> None:
        """Make a step and check what must hold after it."""
        self.done.append(step)
        verb, *given = step
        self.counts[verb] += 1
        await getattr(self, f"_{verb}")(*given)
        self.check()

    async def _key(self, key: str) -> None:
        """Press a key; one of the table has to have an effect, or say something."""
        checked = self._must_act(key)
        before = self._traces()
        await self.run.press(key)
        if checked and self._traces() == before:
            main = self.run.app.main
            raise MonkeyError(
                f"{key} has no effect on {main.tabs.shown.name}, {main.tabs.focused}, and says nothing"
            )

    async def _keys(self, *keys: str) -> None:
        """Send keys as a slow link delivers them."""
        await self.run.press_at_once(*keys)

    async def _command(self, line: str) -> None:
        await self.run.press_at_once(":", *line, "enter")

    async def _paste(self, text: str) -> None:
        self.run.app.post_message(events.Paste(text))
        await self.run.settle()

    async def _resize(self, width: int, height: int) -> None:
        size = Size(width, height)
        driver = self.run.app._driver
        assert driver is not None
        driver._size = size  # type: ignore[attr-defined]
        self.run.app.post_message(events.Resize(size, size))
        await self.run.settle()
        self.run.app.call_later(self.run.app._check_resize)  # which Textual does a little later
        await self.run.settle()

    async def _click(self, x: int, y: int) -> None:
        """Click a cell; a key in the footer has to have an effect, or say something."""
        width, height = self.run.app.size
        x, y = x % width, y % height
        footer = self.run.app.main.bars._footer
        on_key = (
            y == height - 1
            and self._on_main
            and not self.run.app.main.tabs.filter_line.has_focus
            and footer.display
            and any(x < end for end, _ in footer._ends)
        )
        before = self._traces()
        await self._mouse(events.MouseDown, x, y)
        await self._mouse(events.MouseUp, x, y)
        await self.run.settle()
        if on_key and self._traces() == before:
            action = next(row.action for end, row in footer._ends if x < end)
            raise MonkeyError(f"a click on {action} in the footer has no effect and says nothing")

    async def _wheel(self, x: int, y: int, down: int) -> None:
        kind = events.MouseScrollDown if down else events.MouseScrollUp
        await self._mouse(kind, x % self.run.app.size[0], y % self.run.app.size[1])
        await self.run.settle()

    async def _mouse(self, kind: Callable[..., events.MouseEvent], x: int, y: int) -> None:
        event = kind(None, x, y, 0, 0, 1, False, False, False, x, y)
        event.set_sender(self.run.app)
        driver = self.run.app._driver
        assert driver is not None
        driver.send_message(event)

    async def _world(self, what: str, number: int) -> None:
        self.world.change(what, number)
        await self._show()

    async def _clock(self, seconds: float) -> None:
        self.run.clock[0] += seconds
        await self._show()

    async def _show(self) -> None:
        self.world.now = self.run.clock[0]
        await self.run.send(self.world.snapshot())

    async def _controls(self, mood: str, number: int) -> None:
        player = self.run.feed.player
        if mood != "player":
            self.controls.change(mood, number)
        elif isinstance(player, MonkeyPlayer):
            player.change(number)
        await self.run.settle()

    async def _out(self) -> None:
        """Leave whatever is open: some presses of Escape close any dialog."""
        while not self._on_main:
            open_before = len(self.run.app.screen_stack)
            for _ in range(_ESCAPES):
                if len(self.run.app.screen_stack) == open_before:
                    await self.run.press("escape")
            if len(self.run.app.screen_stack) == open_before:
                raise MonkeyError(f"{self.run.dialog} does not close on Escape")

    # -- what must hold

    @property
    def _on_main(self) -> bool:
        return self.run.app.screen is self.run.app.main

    def _must_act(self, key: str) -> bool:
        main = self.run.app.main
        if (
            not self._on_main
            or main.tabs.filter_line.has_focus
            or frame(*self.run.app.size, main.tabs.shown.name) is None
        ):
            return False
        return bool(KEY_MAP.action(key, main.tabs.shown.name))

    def _traces(self) -> tuple[object, ...]:
        app, player = self.run.app, self.run.feed.player
        return (
            self._painted,
            self._said,
            self.left,
            len(self.controls.calls),
            len(player.calls) if isinstance(player, MonkeyPlayer) else 0,
            app.main.session.paused,
            tuple(map(id, app.screen_stack)),
            app.main.tabs.filter_line.has_focus,
            app.clipboard,
        )

    def check(self) -> None:
        """Raise what the screen survived, and see that it goes on."""
        app = self.run.app
        if app.faults:
            raise app.faults[-1]
        if app._exception is not None:
            raise app._exception
        if not app.is_running:
            raise MonkeyError("the screen has ended")
        main = app.main
        if frame(*app.size, main.tabs.shown.name) is not None and not (
            main.tabs.panel.display and main.tabs.panel.active
        ):
            raise MonkeyError(f"the keys refer to {main.tabs.panel.spec.name}, which isn't visible")


class _Counting:
    """A status message that counts what is said."""

    def __init__(self, message: Any, say: Callable[..., None]) -> None:
        self._message = message
        self.say = say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


@asynccontextmanager
async def at_the_keyboard(mode: str, seed: int, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Monkey]:
    """Open the screen in one of MODES, with a monkey before it."""
    chosen = MODES[mode]
    world = World(chosen, seed)
    feed = FakeFeed()
    controls = MonkeyControls(world)
    controls.history = trends()
    feed.controls = controls
    if chosen.kind != "live":
        feed.player = MonkeyPlayer()
    controls.readonly = chosen.readonly
    first = world.snapshot() if seed % 4 else None
    settings = replace(read_settings(()))
    async with running(first, size, feed=feed, slow=chosen.slow, settings=settings, faults=True) as run:
        run.clock[0] = world.now = NOW
        yield Monkey(run, world, controls, seed)


_STEPS: tuple[tuple[int, Callable[[random.Random], Step]], ...] = (  # how often of a thousand, and what
    (620, lambda dice: ("key", dice.choice(KEYS))),
    (60, lambda dice: ("keys", *(dice.choice(KEYS) for _ in range(dice.randint(2, 6))))),
    (120, lambda dice: ("world", dice.choice(WORLD), dice.randrange(1 << 16))),
    (60, lambda dice: ("click", dice.randrange(400), dice.choice((dice.randrange(120), -1)))),
    (20, lambda dice: ("wheel", dice.randrange(400), dice.randrange(120), dice.randrange(2))),
    (30, lambda dice: ("clock", dice.choice(SECONDS))),
    (30, lambda dice: ("controls", dice.choice(MOODS), dice.randrange(1 << 16))),
    (10, lambda dice: ("resize", *dice.choice(SIZES))),
    (5, lambda dice: ("resize", dice.randint(1, 400), dice.randint(1, 120))),
    (10, lambda dice: ("command", dice.choice(LINES))),
    (5, lambda dice: ("paste", "undo 7\nblock 1.2.3.4\x1b[31m" * dice.randrange(3))),
    (30, lambda _: ("out",)),
)
_WEIGHTS = tuple(weight for weight, _ in _STEPS)


def next_step(dice: random.Random) -> Step:
    """Return a random step."""
    ((_, made),) = dice.choices(_STEPS, _WEIGHTS)
    return made(dice)


async def walk(
    steps: int, seed: int, *, at_a_time: int = 1500, told: Callable[[str], None] = print
) -> Counter[str]:
    """Make so many steps, each part of them in another mode; raise with what was done before a failure."""
    counts: Counter[str] = Counter()
    made, part = 0, 0
    while made < steps:
        mode = list(MODES)[part % len(MODES)]
        dice = random.Random(f"{seed} {part}")
        async with at_the_keyboard(mode, seed + part) as monkey:
            for _ in range(min(at_a_time, steps - made)):
                try:
                    await monkey.do(next_step(dice))
                except BaseException:
                    told(f"seed {seed}, part {part} ({mode}), step {made + 1}, {monkey.run.app.size}, after:")
                    for step in monkey.done:
                        told(f"  {step!r}")
                    raise
                made += 1
            counts += monkey.counts
        part += 1
        told(f"{made:,} steps")
    return counts


def main(arguments: Sequence[str]) -> int:
    """Walk, and say how many steps of which kind were made."""
    steps, seed = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    begun = time.monotonic()
    counts = asyncio.run(walk(steps, seed, told=lambda text: print(text, flush=True)))
    kinds = ", ".join(f"{count:,} {verb}" for verb, count in counts.most_common())
    print(f"{sum(counts.values()):,} steps without a failure in {time.monotonic() - begun:.0f} s: {kinds}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
