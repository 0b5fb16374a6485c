"""MDLdroid's experiments, by one command.

python -m papers.mdldroid --quick --json             all of it, small, within a minute
python -m papers.mdldroid --json                     as in README.md; its rows go to results/
python -m papers.mdldroid --only schedulers --json         one experiment
python -m papers.mdldroid --write                    tables and plots of README.md from results/, and the headline
"""

from __future__ import annotations

from papers.harness import command
from papers.harness.paper import Paper
from papers.mdldroid.experiments import EXPERIMENTS
from papers.mdldroid.headline import headline
from papers.mdldroid.setting import RESULTS
from papers.mdldroid.tables import TABLES

PAPER = Paper(
    name="mdldroid",
    about=__doc__ or "",
    store=RESULTS,
    tables=TABLES,
    headline=headline,
    experiments=EXPERIMENTS,
    unmeasured="*Not measured.*",
    tell_headline=True,
)


if __name__ == "__main__":
    command.run(PAPER)
