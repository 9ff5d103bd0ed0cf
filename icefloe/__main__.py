"""`python -m icefloe` runs the command line."""

from __future__ import annotations

from icefloe.cli.app import main

if __name__ == "__main__":
    main()
