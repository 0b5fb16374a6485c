"""An agent that lends and lies: a real one, but for the process that multiplies (``offload_wrong``)."""

from __future__ import annotations

from shoal.runtime import agent, multiplier


def main() -> None:
    multiplier.CHILD_MODULE = "benchmarks.offload_wrong"
    agent.main()


if __name__ == "__main__":
    main()
