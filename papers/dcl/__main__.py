"""DCL's experiments, by one command.

python -m papers.dcl --quick --json              all of it, small, within a minute
python -m papers.dcl --json                      as in README.md; its rows go to results.json
python -m papers.dcl --only same --json          one experiment
python -m papers.dcl --write                     tables and plots of README.md from results.json
"""

from __future__ import annotations

from pathlib import Path

from papers.dcl.experiments import EXPERIMENTS
from papers.dcl.headline import headline
from papers.dcl.tables import TABLES
from papers.harness import command
from papers.harness.paper import Paper
from papers.harness.results import OneFile
from testbed.one_core import again_on_one_core

PAPER = Paper(
    name="dcl",
    about=__doc__ or "",
    store=OneFile(Path(__file__).resolve().with_name("results.json")),
    tables=TABLES,
    headline=headline,
    experiments=EXPERIMENTS,
)


if __name__ == "__main__":
    again_on_one_core("papers.dcl")
    command.run(PAPER)
