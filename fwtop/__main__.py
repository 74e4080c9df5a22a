"""Entry point: `python -I -m fwtop`."""

import sys

from fwtop.startup import prepare

if __name__ == "__main__":
    prepare()
    from fwtop.cli.main import main

    sys.exit(main(sys.argv[1:]))
