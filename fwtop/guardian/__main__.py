"""The entry of the guardian's process: `python -I -m fwtop.guardian [--netns NAME | --netns-fd N]`."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    from fwtop.guardian.main import main

    sys.exit(main())
