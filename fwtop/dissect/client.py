"""Asking the dissecting process without ever waiting for it longer than a person would."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from fwtop.dissect import wire
from fwtop.model.dissection import Dissection
from fwtop.model.paths import ROOT

START_SECONDS = 8.0  # importing scapy takes half a second, and a machine under attack is slow
ANSWER_SECONDS = 3.0
# -I keeps the environment and the working directory from choosing what is imported.
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from fwtop.dissect.__main__ import main; sys.exit(main())"
)
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


class Dissector:
    """Starts the process with the first packet, and again whenever it died or hung.

    One packet at a time; whoever asks meanwhile waits in line. All of it runs on the caller's event
    loop and none of it blocks it.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or (sys.executable, "-I", "-c", _BOOT, str(ROOT)))
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._fresh = True

    async def dissect(self, data: bytes, link: int) -> Dissection:
        """Take a packet apart (link 1: Ethernet first, 0: IP first); never raises for a packet.

        What went wrong, if anything, is in the answer's `problem`.
        """
        async with self._turn:
            try:
                return await self._asked(data, link)
            except TimeoutError:
                problem = "taking this packet apart took too long"
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                problem = f"the dissecting process failed ({type(error).__name__})"
            except asyncio.CancelledError:
                await self._end()  # its answer would be taken for that to the next question
                raise
            await self._end()
            return Dissection((), problem)

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _asked(self, data: bytes, link: int) -> Dissection:
        process = await self._running()
        if process.stdin is None or process.stdout is None:
            raise OSError("no pipes")
        allowed = START_SECONDS if self._fresh else ANSWER_SECONDS
        async with asyncio.timeout(allowed):
            process.stdin.write(wire.request(data, link))
            await process.stdin.drain()
            line = await process.stdout.readuntil(b"\n")
        self._fresh = False
        return wire.parse_answer(line)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        self._fresh = True
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            limit=wire.MAX_LINE,
            start_new_session=True,
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
