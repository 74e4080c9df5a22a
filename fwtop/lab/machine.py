"""One machine of a fleet lab: `python -I -m fwtop.lab.machine`, a lab of its own in a process of its own.

Commands are JSON lines: flood on/off, phase NAME, move (the clients), counters, results. It exits at end of
input, and takes its namespaces down.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_paired, read_text
from fwtop.lab.processes import answer, ignore_terminal_signals
from fwtop.lab.run import Lab
from fwtop.lab.scenario import parse
from fwtop.model.errors import FwtopError


def _obey(command: dict[str, Any], lab: Lab) -> dict[str, Any]:
    match command["do"]:
        case "flood" if command["on"]:
            lab.mark()
            lab.start_flood(command["pps"], seconds=command["seconds"])
        case "flood":
            lab.stop()
        case "phase":
            lab.phase(str(command["name"]))
        case "move":
            lab.move_clients()
        case "counters":
            return {"at": time.monotonic(), "arrived": lab.arrived()[0], "delivered": _delivered(lab.victim)}
        case "truth":
            return lab.truth()
        case "results":
            return lab.results()
    return {"at": time.monotonic()}


def _delivered(victim: str) -> int:
    """Return the packets that the victim's kernel gave to its protocols (IPv4)."""
    with inside(victim):
        return parse_paired(read_text("/proc/thread-self/net/snmp"))["Ip"]["InDelivers"]


def main() -> int:
    """Run one lab until the end of standard input."""
    ignore_terminal_signals()
    setup = json.loads(sys.stdin.readline())
    try:
        scenario = parse(setup["scenario"], "fleet")
        with Lab(
            scenario, source=setup["scenario"], thinking=setup["thinking"], elsewhere=setup["elsewhere"]
        ) as lab:
            answer({"victim": lab.victim, "ssh": lab.ssh_connection})
            for line in sys.stdin:
                answer(_obey(json.loads(line), lab))
    except FwtopError as error:
        answer({"error": str(error), "code": error.code})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
