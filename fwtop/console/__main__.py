"""The console process: started by the launcher, unprivileged, with what it needs handed to it."""

from __future__ import annotations

import gc
import json
import socket
import sys

from fwtop.console.handoff import Options, receive_handoff
from fwtop.model.errors import FwtopError


def main() -> int:
    """Run the mode that the options name and return the exit status."""
    options = Options(**json.loads(sys.argv[2]))
    try:
        return _run(options, socket.socket(fileno=int(sys.argv[1])))
    except FwtopError as error:
        print(f"fwtop: {error}", file=sys.stderr)
        return error.code
    except EOFError:
        return 1


def _run(options: Options, launcher: socket.socket) -> int:
    # What takes long to import is imported before waiting: the guardian compiles meanwhile. Modules and
    # classes are never garbage: looking through them again and again would take a tenth of that time.
    gc.disable()
    if options.mode == "tui":
        from fwtop.console.screen import run_screen as run
    elif options.mode == "record":
        from fwtop.console.record import run_record as run
    elif options.mode == "trial":
        from fwtop.console.trial import run_trial as run
    else:
        from fwtop.console.observe import run_snapshot as run
    gc.freeze()
    gc.enable()
    handoff, descriptors = receive_handoff(launcher)
    launcher.close()
    if handoff.error:
        raise FwtopError(handoff.error, handoff.code)
    return run(options, handoff, descriptors)


if __name__ == "__main__":
    sys.exit(main())
