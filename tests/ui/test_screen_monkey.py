"""A monkey at the keyboard: no exception, no frozen dialog, no key without an effect or a message.

Hypothesis finds short ways to a failure; `STEPS=100000 make test-matrix TESTS=tests/ui/test_screen_monkey.py`
makes a long one, and `PYTHONPATH=. .venv/bin/python tests/ui/screen_monkey.py 100000` tells how it gets on.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from screen_changes import MODES
from screen_monkey import KEYS, LINES, MOODS, SECONDS, SIZES, WORLD, Step, at_the_keyboard, walk

STEPS = int(os.environ.get("STEPS", "20000"))
ANY = st.integers(0, 1 << 16)
SIZE = st.sampled_from(SIZES) | st.tuples(st.integers(1, 400), st.integers(1, 120))


class Keyboard(RuleBasedStateMachine):
    """Steps on a screen that lives in an event loop of its own, in one task as Textual's contexts demand."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._steps: asyncio.Queue[tuple[Step, asyncio.Future[None]] | None] = asyncio.Queue()
        self._life: asyncio.Task[None] | None = None

    @initialize(mode=st.sampled_from(list(MODES)), seed=st.integers(0, 40), size=SIZE)
    def open(self, mode: str, seed: int, size: tuple[int, int]) -> None:
        self._life = self._loop.create_task(self._live(mode, seed))
        self._do("resize", *size)

    async def _live(self, mode: str, seed: int) -> None:
        async with at_the_keyboard(mode, seed) as monkey:
            while (found := await self._steps.get()) is not None:
                step, done = found
                try:
                    await monkey.do(step)
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)

    def _do(self, *step: Any) -> None:
        assert self._life is not None
        done = self._loop.create_future()
        self._steps.put_nowait((step, done))
        self._loop.run_until_complete(asyncio.wait((done, self._life), return_when=asyncio.FIRST_COMPLETED))
        if not done.done():
            self._life.result()  # it could not be opened
        done.result()

    @rule(key=st.sampled_from(KEYS))
    def press(self, key: str) -> None:
        self._do("key", key)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=2, max_size=6))
    def press_quickly(self, keys: list[str]) -> None:
        self._do("keys", *keys)

    @rule(x=st.integers(0, 399), y=st.integers(0, 119) | st.just(-1))
    def click(self, x: int, y: int) -> None:
        self._do("click", x, y)

    @rule(x=st.integers(0, 399), y=st.integers(0, 119), down=st.integers(0, 1))
    def scroll(self, x: int, y: int, down: int) -> None:
        self._do("wheel", x, y, down)

    @rule(size=SIZE)
    def resize(self, size: tuple[int, int]) -> None:
        self._do("resize", *size)

    @rule(line=st.sampled_from(LINES))
    def command(self, line: str) -> None:
        self._do("command", line)

    @rule(what=st.sampled_from(WORLD), number=ANY)
    def change(self, what: str, number: int) -> None:
        self._do("world", what, number)

    @rule(mood=st.sampled_from(MOODS), number=ANY)
    def answer(self, mood: str, number: int) -> None:
        self._do("controls", mood, number)

    @rule(seconds=st.sampled_from(SECONDS))
    def wait(self, seconds: float) -> None:
        self._do("clock", seconds)

    @rule()
    def leave(self) -> None:
        self._do("out")

    def teardown(self) -> None:
        if self._life is not None and not self._life.done():
            self._steps.put_nowait(None)
            self._loop.run_until_complete(self._life)
        self._loop.close()


TestKeyboard = Keyboard.TestCase
TestKeyboard.settings = settings(
    max_examples=5, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


async def test_a_walk_through_each_mode() -> None:
    """The same steps each time; what they found once stays mended."""
    await walk(60 * len(MODES), 7, at_a_time=60, told=lambda _: None)


@pytest.mark.matrix
async def test_a_long_walk() -> None:
    await walk(STEPS, int(os.environ.get("SEED", random.randrange(1 << 30))))
