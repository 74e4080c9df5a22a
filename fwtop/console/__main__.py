"""The console process: unprivileged; the launcher hands it everything it needs."""

from __future__ import annotations

import gc
import json
import socket
import sys

from fwtop.console.frugal import collect_seldom
from fwtop.console.handoff import Options, receive_handoff
from fwtop.model.errors import CONSOLE_OUT_OF_MEMORY, FwtopError
from fwtop.model.wire import of_json
from fwtop.sandbox.confine import Profile, confine


def main() -> int:
    """Run the mode that the options name and return the exit status."""
    options = of_json(Options, sys.argv[2])
    try:
        return _run(options, socket.socket(fileno=int(sys.argv[1])))
    except FwtopError as error:
        print(f"fwtop: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps(error.document()))
        return error.code
    except MemoryError:
        print(f"fwtop: {CONSOLE_OUT_OF_MEMORY}", file=sys.stderr)
        return 1
    except EOFError:
        return 1
    except Exception as error:
        from fwtop.console.judging import failure_line

        print(f"fwtop: {failure_line('the console', error)}", file=sys.stderr)
        return 1


def _run(options: Options, launcher: socket.socket) -> int:
    # Import before waiting for the handoff: the guardian compiles its programs meanwhile. Modules and classes
    # are never garbage; collecting during the imports would cost a tenth of their time.
    gc.disable()
    if options.mode == "tui":
        from fwtop.console.feed import run_screen as run
    elif options.mode == "record":
        from fwtop.console.headless import run_record as run
    elif options.mode == "dry_run":
        from fwtop.console.headless import run_dry_run as run
    else:
        from fwtop.console.headless import run_snapshot as run
    gc.freeze()
    collect_seldom()
    gc.enable()
    serves = options.metrics_fd is not None or (options.drops is not None and options.drops.is_socket)
    confine(Profile.SERVER if serves else Profile.CONSOLE, read=(options.geoip,))
    handoff, descriptors = receive_handoff(launcher)
    launcher.close()
    if handoff.error:
        raise FwtopError(handoff.error, handoff.code)
    return run(options, handoff, descriptors)


if __name__ == "__main__":
    sys.exit(main())
