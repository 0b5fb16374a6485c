"""Writes the tables of docs/papers.md from the ledger and the kept rows. Pure but for reading those."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from papers.harness import ledger as ledgers
from papers.harness import marks
from papers.harness.ledger import Figure, Ledger, Mechanism
from papers.harness.paper import Paper
from papers.harness.results import rows_of
from papers.harness.tables import NOTHING, table


def papers() -> dict[str, Paper]:
    """Return the papers of the ledger."""
    return {name: import_module(f"papers.{name}.__main__").PAPER for name in ledgers.read()}


def written(text: str) -> str:
    """Return the page with every part between marks made again."""
    there, known = ledgers.read(), papers()

    def part(name: str) -> str:
        return _summary(there, known) if name == "summary" else _paper(there[name], known[name])

    return marks.filled(text, ("summary", *there), part)


def _summary(there: Mapping[str, Ledger], known: Mapping[str, Paper]) -> str:
    head = ["paper", "mechanisms", "deployed", "changed", "in papers/ only", "absent"]
    head += ["figures", "reproduced", "changed", "absent", "rows of one seed"]
    lines = []
    for name in [*there, ""]:
        those = {name: there[name]} if name else there
        found = ledgers.counts(those, known)
        built = [found[f"mechanisms_{state}"] for state in ("deployed", "changed", "reproduced", "absent")]
        figures = [found[state] for state in ("figures", "reproduced", "changed", "absent", "one_seed_rows")]
        title = f"[{there[name].title}](#{name})" if name else "all"
        lines.append([title, *map(str, [found["mechanisms"], *built, *figures])])
    return table(head, lines)


def _paper(ledger: Ledger, paper: Paper) -> str:
    tables, kept = ledgers.tables_of(paper), paper.store.read()
    mechanisms = table(["mechanism", "paper", "state", "where", "why"], map(_mechanism, ledger.mechanisms))
    figures = table(
        ["figure", "what", "state", "the authors'", "here", "command", "why"],
        [_figure(each, tables) for each in ledger.figures],
    )
    drawn = [f"- {name}: {what}" for name, what in ledger.drawings.items()]
    alone = ledgers.one_seed_rows(ledger, rows_of(kept))
    seeds = [f"- `{name}`, {len(rows)} rows: {ledger.one_seed[name]}." for name, rows in sorted(alone.items())]
    unseeded = [f"- `{name}`: {reason}." for name, reason in sorted(ledger.unseeded.items())]
    links = (
        f"[{ledger.link.partition('//')[2]}]({ledger.link}), [papers/{paper.name}](../papers/{paper.name}/README.md)"
    )
    parts = [
        f"{links}. Measured on {paper.machine(kept)}",
        mechanisms,
        figures,
        "\n".join(["Without a result:", "", *drawn]) if drawn else "",
        "\n".join(["Rows of one seed:", "", *seeds]) if seeds else "",
        "\n".join(["Experiments without seeds:", "", *unseeded]) if unseeded else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _mechanism(each: Mechanism) -> list[str]:
    state = "in papers/ only" if each.state == "reproduced" else each.state
    where = ", ".join(f"[`{path.removeprefix('src/shoal/')}`](../{path})" for path in each.where)
    return [each.what, each.section, state, where or NOTHING, each.reason or NOTHING]


def _figure(each: Figure, tables: Mapping[str, str]) -> list[str]:
    command = f"`{each.command}`" if each.command else NOTHING
    cells = [ledgers.filled(text, tables) or NOTHING for text in (each.paper, each.here)]
    return [each.name, each.what, each.state, *cells, command, each.reason or NOTHING]
