"""EDDL's experiments, by one command.

python -m papers.eddl --quick --json              all of it, small, within a minute
python -m papers.eddl --json                      as in README.md; its rows go to results.json
python -m papers.eddl --only saturated --json     one experiment
python -m papers.eddl --write                     tables and plots of README.md from results.json
"""

from __future__ import annotations

from pathlib import Path

from papers.eddl.experiments import EXPERIMENTS
from papers.eddl.headline import headline
from papers.eddl.tables import TABLES
from papers.harness import command
from papers.harness.paper import Paper
from papers.harness.results import OneFile

PAPER = Paper(
    name="eddl",
    about=__doc__ or "",
    store=OneFile(Path(__file__).resolve().with_name("results.json")),
    tables=TABLES,
    headline=headline,
    experiments=EXPERIMENTS,
)


if __name__ == "__main__":
    command.run(PAPER)
