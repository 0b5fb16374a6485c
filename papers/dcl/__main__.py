"""DCL's experiments, by one command.

python -m papers.dcl --quick --json              all of it, small, within a minute or two
python -m papers.dcl --json                      as in README.md; its rows go to results.json
python -m papers.dcl --only same --json          one experiment
python -m papers.dcl --write                     tables and plots of README.md from results.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common import finish, say
from benchmarks.one_core import again_on_one_core
from papers.dcl import results
from papers.dcl.experiments import EXPERIMENTS
from papers.dcl.headline import headline
from papers.eddl.rows import Row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--quick", action="store_true", help="small, and nothing is kept")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--write", action="store_true", help="write tables and plots from results.json; measure nothing"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    given = parser.parse_args(arguments)
    if given.write:
        write()
        return
    measured = run([name for name in names if not given.only or name in given.only], quick=given.quick)
    finish(told(measured, quick=given.quick))


def run(names: Sequence[str], *, quick: bool) -> dict[str, tuple[list[Row], float]]:
    measured = {}
    for experiment in EXPERIMENTS:
        if experiment.name not in names:
            continue
        say(f"== {experiment.name}: {experiment.figure}")
        began_s = time.monotonic()
        rows = experiment.run(quick)
        measured[experiment.name] = (rows, time.monotonic() - began_s)
        if not quick:
            # At once: the next may fail, or be too long for whoever waits.
            results.write(experiment.name, *measured[experiment.name])
        say(f"   {len(rows)} rows in {measured[experiment.name][1]:.0f} s")
    return measured


def told(measured: dict[str, tuple[list[Row], float]], *, quick: bool) -> dict[str, Any]:
    rows = {name: rows for name, (rows, _) in measured.items()}
    return {
        "quick": quick,
        "seconds": {name: round(seconds, 1) for name, (_, seconds) in measured.items()},
        **headline(rows),
        "rows": rows,
    }


def write() -> None:
    # Here, because only this needs matplotlib.
    from papers.dcl import plots, readme

    kept = results.read()
    written = [*plots.draw_all(kept), readme.fill(kept)]
    finish({"wrote": [path.name for path in written]})


if __name__ == "__main__":
    again_on_one_core("papers.dcl")
    main()
