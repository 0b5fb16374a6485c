"""A paper as the harness sees it: its experiments, tables and plots, its folder and its rows' store. Knows no paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from papers.harness import marks
from papers.harness.results import Kept, Store, rows_of
from papers.harness.rows import Drawing, Experiment, Rows
from papers.harness.tables import measured_on


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    #: The folder under ``papers/``; its module ``plots`` has PLOTS.
    name: str
    #: The command's help.
    about: str
    store: Store
    #: By the name of the mark in README.md.
    tables: Mapping[str, Drawing[str]]
    #: The few figures by which the reproduction is judged.
    headline: Callable[[Rows], dict[str, Any]]
    experiments: Sequence[Experiment] = ()
    #: The line on the machine, of all that was measured.
    machine: Callable[[Kept], str] = measured_on
    #: The text of a table that was not measured; None leaves the one that stands there.
    unmeasured: str | None = None
    #: ``--write`` tells the headline as well.
    tell_headline: bool = False

    @property
    def folder(self) -> Path:
        return Path(__file__).resolve().parent.parent / self.name

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"

    def filled(self, text: str, kept: Kept) -> str:
        """The text of a README with every table made again from these rows."""
        rows = rows_of(kept)

        def table(name: str) -> str | None:
            if name == marks.MACHINE:
                return self.machine(kept) if kept else self.unmeasured
            made = self.tables[name].of(rows)
            return self.unmeasured if made is None else made

        return marks.filled(text, self.tables, table)

    def write(self) -> dict[str, Any]:
        """Write plots and README.md from the kept rows; the names of the files, and the headline if it is asked for."""
        # Here, because only this needs matplotlib.
        from papers.harness.plots import draw_all

        kept = self.store.read()
        rows = rows_of(kept)
        written = draw_all(import_module(f"papers.{self.name}.plots").PLOTS, rows, self.folder)
        self.readme.write_text(self.filled(self.readme.read_text(), kept))
        told = self.headline(rows) if self.tell_headline else {}
        return {"wrote": [path.name for path in (*written, self.readme)], **told}
