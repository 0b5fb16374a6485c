"""The manager of a soak: the real one, watched. Run as ``shoal.runtime.serve`` is."""

from __future__ import annotations

import sys

from benchmarks.chaos_faults import MANAGER
from benchmarks.chaos_watch import watching
from shoal.runtime import serve


def main() -> int:
    with watching(MANAGER):
        return serve.main()


if __name__ == "__main__":
    sys.exit(main())
