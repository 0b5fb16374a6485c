"""MDLdroid's experiments, by one command.

python -m papers.mdldroid --quick --json             all of it, small, within a minute
python -m papers.mdldroid --json                     as in README.md; its rows go to results/
python -m papers.mdldroid --only schedulers --json         one experiment
python -m papers.mdldroid --write                    tables and plots of README.md from results/, and the headline
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from benchmarks.common import finish, say
from papers.eddl.rows import Experiment, Row
from papers.mdldroid import results
from papers.mdldroid.experiments import EXPERIMENTS
from papers.mdldroid.headline import headline


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--quick", action="store_true", help="small: within a minute, and nothing is kept")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="write tables and plots from results/; measure nothing")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    given = parser.parse_args(arguments)
    if given.write:
        write()
        return
    measured, seconds = run(wanted(given.only, quick=given.quick), quick=given.quick)
    finish({"quick": given.quick, "seconds": seconds, **headline(measured), "rows": measured})


def wanted(only: Sequence[str] | None, *, quick: bool) -> list[Experiment]:
    if only:
        return [experiment for experiment in EXPERIMENTS if experiment.name in only]
    return [experiment for experiment in EXPERIMENTS if experiment.in_quick or not quick]


def run(experiments: Sequence[Experiment], *, quick: bool) -> tuple[dict[str, list[Row]], dict[str, float]]:
    measured, seconds = {}, {}
    for experiment in experiments:
        say(f"== {experiment.name}: {experiment.figure}")
        began_s = time.monotonic()
        measured[experiment.name] = experiment.run(quick)
        seconds[experiment.name] = round(time.monotonic() - began_s, 1)
        if not quick and measured[experiment.name]:
            # At once: the next may fail, or be too long for whoever waits.
            results.write(experiment.name, measured[experiment.name], seconds[experiment.name])
        say(f"   {len(measured[experiment.name])} rows in {seconds[experiment.name]:.0f} s")
    return measured, seconds


def write() -> None:
    # Here, because only this needs matplotlib.
    from papers.mdldroid import plots, readme

    kept = results.read()
    written = [*plots.draw_all(kept), readme.fill(kept)]
    finish({"wrote": [path.name for path in written], **headline({name: told["rows"] for name, told in kept.items()})})


if __name__ == "__main__":
    main()
