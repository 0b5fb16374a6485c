"""The tables of README.md, each from its experiment's rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from papers.harness.rows import Row, chosen, of_one, one
from papers.harness.tables import NOTHING, percent, table

_KINDS = ("add", "subtract", "multiply", "divide", "dot", "product")
_MODES = {
    "at home": "the layer at home, one product",
    "unshuffled": "outer products, summed",
    "paper": "outer products, shuffled, put back and summed (the thesis)",
    "tiles": "tiles",
    "freivalds": "tiles, checked by Freivalds",
    "mask": "tiles under masks, checked",
    "replicate": "tiles, three times each",
}


def gigabytes(value: float) -> str:
    return f"{value:.4g} GB"


def communication(rows: list[Row]) -> str:
    head = ["", *(f"{way}: {how}" for way in ("issuing", "returning") for how in ("thesis", "as it is", "by tiles"))]
    names = [f"{whose}{way}_gb" for way in ("issued", "returned") for whose in ("thesis_", "", "tiles_")]
    lines = [[row["role"], *(gigabytes(row[name]) for name in names)] for row in rows if "thesis_issued_gb" in row]
    return table(head, lines)


def counted(rows: list[Row]) -> str:
    printed, made, ratio = (one(rows, role=role) for role in ("as printed", "counted", "ratio"))
    lines = []
    if printed:
        lines.append(["(4.1), issued, as printed: D·a·c·b", gigabytes(printed["issued_4_1_gb"])])
        lines.append(["(4.6), returned, as printed: D·a·c·e·s", gigabytes(printed["returned_4_6_gb"])])
        lines.append(["Table 4.1: D·a·c·⌈b/es⌉·es", gigabytes(printed["returned_table_gb"])])
    if made:
        lines.append(
            [f"tasks of {made['samples']:,} images made and counted: issued", f"{made['issued_bytes']:,} bytes"]
        )
        lines.append(["… and returned, both as the equations say, to the byte", f"{made['returned_bytes']:,} bytes"])
    if ratio:
        lines.append(["outer products over tiles, all bytes", f"{ratio['times_fewer']:.1f} times"])
    return table(["", ""], lines)


def brute_force(rows: list[Row]) -> str:
    head = ["tried", "log₁₀ of the tries", "log₁₀ of ages of the universe", "the thesis says"]
    lines = [
        [row["what"], f"{row['log10_tries']:,}", f"{row['log10_ages']:,}", f"{row['thesis_log10_ages']:,}"]
        for row in rows
    ]
    return table(head, lines)


def secrecy(rows: list[Row]) -> str:
    sizes = sorted({row["images"] for row in rows})
    head = ["hidden by", *(f"{size:,} images" for size in sizes), "put anywhere, at most"]
    lines = []
    for against in dict.fromkeys(row["against"] for row in rows):
        found = [one(rows, against=against, images=size) for size in sizes]
        what = next(row for row in found if row)
        cells = [percent(row["within_one"] if row else None, 1) for row in found]
        lines.append([what["what"], *cells, percent(what["chance"], 1)])
    return table(head, lines)


def same(rows: list[Row]) -> str:
    head = ["products", "accuracy", "held against", "same bits", "largest difference", "of the largest move"]
    lines = []
    for row in rows:
        cells = [row["way"], percent(row["accuracy"], 2)]
        if "against" in row:
            cells += [row["against"], "yes" if row["same_bits"] else "no"]
            cells += [f"{row['largest_difference']:.2g}", f"{row['difference_of_moved']:.1g}"]
        else:
            cells += [NOTHING] * 4
        lines.append(cells)
    return table(head, lines)


def operations(rows: list[Row]) -> str:
    sizes = sorted({row["bytes"] for row in rows})
    lines = []
    for size in sizes:
        found = [one(rows, bytes=size, kind=kind) for kind in _KINDS]
        shown = f"{size / 1024:,.0f} kB" if size < 1 << 20 else f"{size / (1 << 20):,.0f} MB"
        lines.append([shown, *(f"{row['gflops']:.2f}" if row else NOTHING for row in found)])
    return table(["each array", *_KINDS[:-1], "product of matrices"], lines)


def analyst(rows: list[Row]) -> str:
    head = ["mode", "analyst's operations, of the layer's", "analyst, ms", "executors, ms", "analyst over doing it all"]
    lines = []
    for mode, name in _MODES.items():
        for row in chosen(rows, mode=mode):
            cells = [name, percent(row.get("share"), 2), f"{1000 * row['analyst_s']:,.1f}"]
            cells.append(f"{1000 * row['executors_s']:,.1f}" if "executors_s" in row else NOTHING)
            cells.append(f"{row['over_home']:.3g}" if "over_home" in row else "1")
            lines.append(cells)
    return table(head, lines)


#: By the name of the mark in README.md.
TABLES = {
    "communication": of_one("communication", communication),
    "counted": of_one("communication", counted),
    "brute_force": of_one("brute_force", brute_force),
    "secrecy": of_one("secrecy", secrecy),
    "same": of_one("same", same),
    "operations": of_one("operations", operations),
    "analyst": of_one("analyst", analyst),
}
