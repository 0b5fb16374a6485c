"""FLeet's experiments, by one command.

python -m papers.fleet --quick --json             all of it, small, within a minute
python -m papers.fleet --json                     as in README.md; its rows go to results/
python -m papers.fleet --only late --json         one experiment
python -m papers.fleet --write                    tables and plots of README.md from results/, and the headline
"""

from __future__ import annotations

from pathlib import Path

from papers.fleet.experiments import EXPERIMENTS
from papers.fleet.headline import headline
from papers.fleet.tables import TABLES
from papers.harness import command
from papers.harness.paper import Paper
from papers.harness.results import Folder

PAPER = Paper(
    name="fleet",
    about=__doc__ or "",
    store=Folder(Path(__file__).resolve().with_name("results")),
    tables=TABLES,
    headline=headline,
    experiments=EXPERIMENTS,
    unmeasured="*Not measured.*",
    tell_headline=True,
)


if __name__ == "__main__":
    command.run(PAPER)
