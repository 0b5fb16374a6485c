"""EDDL's experiments, by one command.

python -m papers.eddl --quick --json              all of it, small, within a minute
python -m papers.eddl --json                      as in README.md; its rows go to results.json
python -m papers.eddl --only saturated --json     one experiment
python -m papers.eddl --write                     tables and plots of README.md from results.json
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papers import command
from papers.eddl import results
from papers.eddl.experiments import EXPERIMENTS
from papers.eddl.headline import headline
from papers.eddl.rows import Row


def keep(name: str, rows: list[Row], seconds: float) -> None:
    results.write({name: (rows, seconds)})


def write() -> dict[str, Any]:
    # Here, because only this needs matplotlib.
    from papers.eddl import plots, readme

    kept = results.read()
    written = [*plots.draw_all(kept), readme.fill(kept)]
    return {"wrote": [path.name for path in written]}


PAPER = command.Paper(
    about=__doc__ or "",
    experiments=EXPERIMENTS,
    keep=keep,
    headline=headline,
    write=write,
    place="results.json",
)


def main(arguments: Sequence[str] | None = None) -> None:
    command.run(PAPER, arguments)


if __name__ == "__main__":
    main()
