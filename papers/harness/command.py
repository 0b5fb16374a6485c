"""The command of a paper: runs its experiments by name, keeps their rows at once, prints JSON. Knows no paper."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from papers.harness import parts
from papers.harness.paper import Paper
from papers.harness.results import OneFile
from papers.harness.rows import Experiment, Rows
from testbed.results import finish, say


def run(paper: Paper, arguments: Sequence[str] | None = None) -> None:
    names = [experiment.name for experiment in paper.experiments]
    place = "results.json" if isinstance(paper.store, OneFile) else "results/"
    parser = argparse.ArgumentParser(description=paper.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small: within a minute, and nothing is kept")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"write tables and plots from {place}; measure nothing")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    given = parser.parse_args(arguments)
    if given.write:
        finish(paper.write())
        return
    rows, seconds = measured(paper, wanted(paper, given.only, quick=given.quick), quick=given.quick)
    if not given.quick:
        say(f"rows are in {place}; with --write tables and plots are made of them")
    finish({"quick": given.quick, "seconds": seconds, **paper.headline(rows), "rows": rows})


def wanted(paper: Paper, only: Sequence[str] | None, *, quick: bool) -> list[Experiment]:
    if only:
        return [experiment for experiment in paper.experiments if experiment.name in only]
    return [experiment for experiment in paper.experiments if experiment.in_quick or not quick]


def measured(paper: Paper, experiments: Sequence[Experiment], *, quick: bool) -> tuple[Rows, dict[str, float]]:
    rows, seconds = {}, {}
    for experiment in experiments:
        name = experiment.name
        say(f"== {name}: {experiment.figure}")
        began_s = time.monotonic()
        rows[name] = experiment.run(quick)
        took_s = time.monotonic() - began_s
        seconds[name] = round(took_s, 1)
        if not quick and rows[name]:
            # At once: the next may fail, or be too long for the person who waits.
            paper.store.write(name, rows[name], max(took_s, parts.seconds_of(paper.name, name)))
            parts.drop(paper.name, name)
        say(f"   {len(rows[name])} rows in {took_s:.0f} s")
    return rows, seconds
