"""Papers' mechanisms and figures as a ledger: what is deployed, reproduced, changed and absent. Measures nothing.

``papers/ledger.toml`` has an entry for each mechanism and each figure of a paper. A measured value is never typed
there: an entry names a cell of a table that the paper's rows give, as ``{table | first cells of a row | column}``. A
``*`` is any cell.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from papers.harness.paper import Paper
from papers.harness.results import rows_of
from papers.harness.rows import Row, Rows
from shoal.errors import Misuse

Found = Literal["reproduced", "changed", "absent"]
Built = Literal["deployed", "changed", "reproduced", "absent"]

FILE = Path(__file__).resolve().parent.parent / "ledger.toml"

_CELL = re.compile(r"\{([^}]*)\}")

#: Lists in a row that have one value per seed.
_BY_SEED = ("by_seed", "class_0_finals", "finals", "steps_to_80")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """A part of the paper's system, and its counterpart in Shoal."""

    what: str
    section: str
    #: ``deployed`` as in the paper, ``changed`` and deployed, ``reproduced`` outside the product, or ``absent``.
    state: Built
    #: Files below the root of the repository.
    where: tuple[str, ...] = ()
    #: Why it is not deployed as the paper has it.
    reason: str = ""

    def __post_init__(self) -> None:
        _known(self.what, self.state, get_args(Built))
        if self.state != "deployed" and not self.reason:
            raise Misuse(f"{self.what!r} is {self.state} without a reason")
        if (self.state == "absent") == bool(self.where):
            raise Misuse(f"{self.what!r} is {self.state}: it must name its files unless it is absent")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure, a table or a number in the text of a paper, and our measurement."""

    name: str
    what: str
    state: Found
    #: The authors' value, as text or as cells.
    paper: str = ""
    #: Ours: words and cells, without a digit outside of the cells.
    here: str = ""
    command: str = ""
    #: What differs from the paper's, or why nothing was measured.
    reason: str = ""

    def __post_init__(self) -> None:
        _known(self.name, self.state, get_args(Found))
        if self.state != "reproduced" and not self.reason:
            raise Misuse(f"{self.name} is {self.state} without a reason")
        if self.state == "absent" and (self.here or self.command):
            raise Misuse(f"{self.name} is absent and names a result")
        if self.state != "absent" and not self.command:
            raise Misuse(f"{self.name} is {self.state} without a command")
        if self.state == "reproduced" and not _CELL.search(self.here):
            raise Misuse(f"{self.name} is reproduced without a cell of a measured table")
        if re.search(r"\d", _CELL.sub("", self.here)):
            raise Misuse(f"{self.name} has a typed digit in {self.here!r}: name a cell of a table")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """One paper's entries."""

    title: str
    link: str
    #: How many of each kind the paper has, by the start of their names ("Figure ": 15).
    numbered: Mapping[str, int]
    #: Figures and tables that show no result, and what they show instead.
    drawings: Mapping[str, str]
    mechanisms: tuple[Mechanism, ...]
    figures: tuple[Figure, ...]
    #: Why an experiment has rows of one seed.
    one_seed: Mapping[str, str] = field(default_factory=dict)
    #: Why an experiment has no seeds.
    unseeded: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [*self.drawings, *(figure.name for figure in self.figures)]
        for start, count in self.numbered.items():
            for number in range(1, count + 1):
                whole = re.compile(rf"{re.escape(start)}{number}(?!\d)")
                if not any(whole.match(name) for name in named):
                    raise Misuse(f"{self.title}: there is no entry for {start}{number}")


def read(file: Path = FILE) -> dict[str, Ledger]:
    """Return the ledger of each paper by the paper's name."""
    return {name: _ledger(plain) for name, plain in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def _ledger(plain: dict[str, Any]) -> Ledger:
    mechanisms = tuple(Mechanism(**{**each, "where": tuple(each.get("where", ()))}) for each in plain["mechanisms"])
    figures = tuple(Figure(**each) for each in plain["figures"])
    return Ledger(**{**plain, "mechanisms": mechanisms, "figures": figures})


def counts(ledgers: Mapping[str, Ledger], papers: Mapping[str, Paper]) -> dict[str, int]:
    """Return how many figures and mechanisms are in each state, and how many kept rows are of one seed."""
    figures = Counter(figure.state for ledger in ledgers.values() for figure in ledger.figures)
    built = Counter(mechanism.state for ledger in ledgers.values() for mechanism in ledger.mechanisms)
    return {
        "figures": figures.total(),
        **{state: figures[state] for state in get_args(Found)},
        "one_seed_rows": sum(
            len(found)
            for name, ledger in ledgers.items()
            for found in one_seed_rows(ledger, rows_of(papers[name].store.read())).values()
        ),
        "mechanisms": built.total(),
        **{f"mechanisms_{state}": built[state] for state in get_args(Built)},
    }


def one_seed_rows(ledger: Ledger, rows: Rows) -> dict[str, list[Row]]:
    """Return the rows of one seed by experiment. Raises if one has no reason, or a reason has no row."""
    found = {name: [row for row in kept if seeds_of(row, kept) < 2] for name, kept in rows.items()}
    alone = {name: few for name, few in found.items() if few and name not in ledger.unseeded}
    if unexplained := sorted(set(alone) - set(ledger.one_seed)):
        raise Misuse(f"{ledger.title}: rows of one seed without a reason in {', '.join(unexplained)}")
    if idle := sorted(set(ledger.one_seed) - set(alone)):
        raise Misuse(f"{ledger.title}: a reason for one seed, and no such row, in {', '.join(idle)}")
    return alone


def seeds_of(row: Row, among: Sequence[Row]) -> int:
    """Return how many seeds a row stands for: its values by seed, its patterns or runs, or rows with other seeds.

    The keys before its seed say which run a row is of.
    """
    if "seed" in row:
        return len({other["seed"] for other in among if _before_seed(other) == _before_seed(row)})
    listed = [len(row[name]) for name in _BY_SEED if isinstance(row.get(name), list)]
    return max([*listed, int(row.get("patterns", 1)), int(row.get("runs", 1))])


def _before_seed(row: Row) -> list[tuple[str, Any]]:
    items = list(row.items())
    return items[: [name for name, _ in items].index("seed")]


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Return a text with every ``{table | first cells of a row | column}`` replaced by that cell."""
    return _CELL.sub(lambda found: cell(tables, found[1]), text)


def cell(tables: Mapping[str, str], address: str) -> str:
    """Return one cell of a Markdown table. Raises unless the address names exactly one."""
    name, *row, column = [part.strip() for part in address.split("|")]
    if name not in tables:
        raise Misuse(f"{{{address}}}: there is no table {name!r}")
    head, _, *lines = [[each.strip() for each in line.strip("|").split(" | ")] for line in tables[name].splitlines()]
    fitting = [line for line in lines if all(want in ("*", have) for want, have in zip(row, line, strict=False))]
    if len(fitting) != 1 or head.count(column) != 1:
        raise Misuse(f"{{{address}}} names {len(fitting)} rows and {head.count(column)} columns: one of each is needed")
    return fitting[0][head.index(column)]


def tables_of(paper: Paper) -> dict[str, str]:
    """Return every table of a paper that its kept rows give."""
    rows = rows_of(paper.store.read())
    made = {name: drawing.of(rows) for name, drawing in paper.tables.items()}
    return {name: text for name, text in made.items() if text is not None}


def _known(what: str, state: str, states: Iterable[str]) -> None:
    if state not in states:
        raise Misuse(f"{what}: the state {state!r} is not one of {', '.join(states)}")
