"""`python -m quiverlog`: the same as the `quiverlog` command."""

from __future__ import annotations

import sys

from quiverlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
