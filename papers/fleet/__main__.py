"""FLeet's experiments, by one command.

python -m papers.fleet --quick --json             all of it, small, within a minute
python -m papers.fleet --json                     as in README.md; its rows go to results/
python -m papers.fleet --only late --json         one experiment
python -m papers.fleet --write                    tables and plots of README.md from results/, and the headline
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papers import command
from papers.fleet import results
from papers.fleet.experiments import EXPERIMENTS
from papers.fleet.headline import headline


def write() -> dict[str, Any]:
    # Here, because only this needs matplotlib.
    from papers.fleet import plots, readme

    kept = results.read()
    written = [*plots.draw_all(kept), readme.fill(kept)]
    return {"wrote": [path.name for path in written], **headline({name: told["rows"] for name, told in kept.items()})}


PAPER = command.Paper(about=__doc__ or "", experiments=EXPERIMENTS, keep=results.write, headline=headline, write=write)


def main(arguments: Sequence[str] | None = None) -> None:
    command.run(PAPER, arguments)


if __name__ == "__main__":
    main()
