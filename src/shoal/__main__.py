"""``python -m shoal``: the command `shoal`, for where the folder of scripts is not on the PATH."""

from __future__ import annotations

from shoal.cli.main import main

if __name__ == "__main__":
    main()
