"""Entry point: `python -I -m fwtop`."""

import sys

from fwtop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
