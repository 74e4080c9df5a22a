"""Entry point: `python -I -m fwtop`."""

import sys

if __name__ == "__main__":
    from fwtop.cli.main import main

    sys.exit(main(sys.argv[1:]))
