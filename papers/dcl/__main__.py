"""DCL's experiments, by one command.

python -m papers.dcl --quick --json              all of it, small, within a minute
python -m papers.dcl --json                      as in README.md; its rows go to results.json
python -m papers.dcl --only same --json          one experiment
python -m papers.dcl --write                     tables and plots of README.md from results.json
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.one_core import again_on_one_core
from papers import command
from papers.dcl import results
from papers.dcl.experiments import EXPERIMENTS
from papers.dcl.headline import headline


def write() -> dict[str, Any]:
    # Here, because only this needs matplotlib.
    from papers.dcl import plots, readme

    kept = results.read()
    written = [*plots.draw_all(kept), readme.fill(kept)]
    return {"wrote": [path.name for path in written]}


PAPER = command.Paper(
    about=__doc__ or "",
    experiments=EXPERIMENTS,
    keep=results.write,
    headline=headline,
    write=write,
    place="results.json",
)


def main(arguments: Sequence[str] | None = None) -> None:
    command.run(PAPER, arguments)


if __name__ == "__main__":
    again_on_one_core("papers.dcl")
    main()
