"""`python -m shardline …` is the command `shardline …`."""

from __future__ import annotations

import sys

from shardline.commands import main

if __name__ == "__main__":
    sys.exit(main())
