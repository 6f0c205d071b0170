"""Run ``python -m labkit COMMAND``, the same as ``labkit COMMAND``."""

import sys

from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
