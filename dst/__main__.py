"""``python -m dst TRACE``: play the seed of a recorded trace again, and say where the two differ."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dst.case import case
from dst.run import FuzzRun
from shoal.sim.invariants import Violation
from shoal.sim.trace import Comparison, TraceWriter, read_header


def replay(path: Path) -> Comparison:
    """Play the seed that a trace is of, and compare line by line."""
    with path.open(encoding="utf-8") as file:
        header = read_header(file)
        file.seek(0)
        compared = Comparison(file)
        facts = {name: value for name, value in header.items() if name != "shoal_trace"}
        try:
            FuzzRun(case(header["profile"], int(header["seed"])), observers=[TraceWriter(compared, facts)]).run()
            compared.finish()
        except Violation as violation:
            # A trace of a seed that failed ends where a check raised.
            print(f"the seed fails: {violation}")
        return compared


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dst", description=__doc__)
    parser.add_argument("trace", type=Path, help="a file that benchmarks.protocol_seeds --trace wrote")
    compared = replay(parser.parse_args().trace)
    if compared.difference is None:
        print(f"the same, {compared.count} lines")
        return 0
    print(f"line {compared.difference.line} differs:\n{compared.difference.first}\n{compared.difference.second}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
