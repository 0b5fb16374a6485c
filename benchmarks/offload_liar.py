"""An agent that lends and lies: a real one, but for the process that multiplies (``offload_wrong``)."""

from __future__ import annotations

from shoal.offload.runtime import multiplier
from shoal.runtime import agent


def main() -> None:
    multiplier.CHILD_MODULE = "benchmarks.offload_wrong"
    agent.main()


if __name__ == "__main__":
    main()
