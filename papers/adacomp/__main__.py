"""AdaComp's experiments, by one command.

python -m papers.adacomp --quick --json              all methods, small, within a minute
python -m papers.adacomp --json                      as in README.md, for hours; rows go to results/
python -m papers.adacomp --only headline --missing   one experiment, and of it what has no row yet
python -m papers.adacomp --final                     as long as the paper's: 250,000 updates, three seeds; continues
python -m papers.adacomp --roles --json              one run through the simulator, with the roles that are deployed
python -m papers.adacomp --write                     tables and plots of README.md from results/
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from papers.adacomp import results, unfinished
from papers.adacomp.experiments import EXPERIMENTS, FINAL, FINAL_SEEDS, QUICK
from papers.adacomp.headline import headline
from papers.adacomp.runs import Course, Run
from papers.adacomp.tables import TABLES, machine
from papers.harness.paper import Paper
from papers.harness.results import rows_of
from papers.harness.rows import Row
from testbed.results import finish, say

PAPER = Paper(
    name="adacomp", about=__doc__ or "", store=results.KEPT, tables=TABLES, headline=headline, machine=machine
)


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments(arguments)
    if given.write:
        finish(PAPER.write())
        return
    if given.roles:
        from papers.adacomp import roles

        finish({"quick": given.quick, **roles.run(quick=given.quick)})
        return
    began_s = time.monotonic()
    seeds = given.seeds or (FINAL_SEEDS if given.final else 1)
    rows = run(wanted(given.only, final=given.final, quick=given.quick, seeds=seeds), given)
    kept = {} if given.quick else rows_of(results.KEPT.read())
    told = {name: [without_curve(row) for row in found] for name, found in rows.items()}
    finish({"quick": given.quick, "seconds": time.monotonic() - began_s, **headline(rows | kept), "rows": told})


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=PAPER.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small: within a minute, and nothing is kept")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help=f"experiments of {', '.join(EXPERIMENTS)}; or methods"
    )
    parser.add_argument("--missing", action="store_true", help="only what has no row in results/ yet")
    parser.add_argument("--seeds", type=int, help="runs of each, with seeds from 0 on (1; with --final 3)")
    parser.add_argument(
        "--final",
        action="store_true",
        help="as long as the paper's runs: six hours of a core; it continues",
    )
    parser.add_argument("--roles", action="store_true", help="AdaComp through the whole simulator")
    parser.add_argument("--write", action="store_true", help="write tables and plots from results/; measure nothing")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    return parser.parse_args(arguments)


def wanted(only: Sequence[str] | None, *, final: bool, quick: bool, seeds: int) -> dict[str, list[Run]]:
    """Experiments by name, or of all of them the runs of some methods."""
    there: dict[str, tuple[Run, ...]] = EXPERIMENTS
    if quick or final:
        there = {"quick": QUICK} if quick else {"final": FINAL}
    chosen = {}
    for name, runs in there.items():
        picked = [run for run in runs if not only or name in only or run.method in only]
        if picked:
            chosen[name] = [replace(run, seed=seed) for seed in range(seeds) for run in picked]
    return chosen


def run(chosen: dict[str, list[Run]], given: argparse.Namespace) -> dict[str, list[Row]]:
    course: Course | None = None
    rows: dict[str, list[Row]] = {}
    for name, runs in chosen.items():
        left = results.missing(name, runs) if given.missing or given.final else runs
        for number, each in enumerate(left, len(runs) - len(left) + 1):
            course = course or Course(test_images=1_000 if given.quick else 10_000)
            say(f"== {name} {number}/{len(runs)}: {each.title}")
            file = unfinished.file_of(each.key) if name == "final" else None
            row = course.measured(each, say=say, file=file)
            rows.setdefault(name, []).append(row)
            if not given.quick:
                # At once: the next may fail, or be too long for whoever waits.
                results.keep(name, row, each.key)
            if file:
                file.unlink(missing_ok=True)
    return rows


def without_curve(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "curve"}


if __name__ == "__main__":
    main()
