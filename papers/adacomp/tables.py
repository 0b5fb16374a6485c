"""The tables of README.md, each from its experiment's rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from papers.adacomp import paper
from papers.adacomp.experiments import MEASURED
from papers.adacomp.headline import SENT, fewer, there
from papers.harness.results import Kept, rows_of
from papers.harness.rows import Drawing, Row, Rows, chosen, one
from papers.harness.tables import NOTHING, count, percent, table
from papers.harness.tables import machine as machine_of

NAMES = {
    "asgd": "ASGD",
    "comp-asgd-10": "Comp-ASGD, 10 %",
    "comp-asgd-1": "Comp-ASGD, 1 %",
    "adacomp-10": "AdaComp, 10 %",
    "adacomp-1": "AdaComp, 1 %",
    "feedback-1": "1 %, error feedback, 4 bits",
}
ARRIVALS = {"cycles": "uniform cycles", "memoryless": "memoryless"}
RULES = {"none": "none", "update": "α/τ", "parameter": "α/σ of each"}

#: What a run to the target tells.
_SENT = ("updates", "entries", "coded", "with envelopes", "pickled")


def amount(value: float | None) -> str:
    """Bytes as people say them."""
    if value is None:
        return NOTHING
    unit, name = (1e9, "GB") if value >= 1e9 else (1e6, "MB")
    return f"{value / unit:,.{0 if value / unit >= 100 else 1 if value / unit >= 10 else 2}f} {name}"


def power(value: float | None) -> str:
    """Entries: too many to count the digits of."""
    if value is None:
        return NOTHING
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}·10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(int(exponent)))}"


def times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.{1 if value < 10 else 0}f}x"


def _sent(row: Row) -> list[str]:
    if row["updates_to_target"] is None:
        ended = "lost after" if row["trouble"] else "not in"
        tried = f"{ended} {count(row['updates'])} ({percent(row['best'], 1)} at best)"
        return [tried, *[NOTHING] * (len(_SENT) - 1)]
    sent = [amount(row[name]) for name in ("update_bytes", "frame_bytes", "pickled_bytes")]
    return [count(row["updates_to_target"]), power(row["entries"]), *sent]


def _to_target(rows: list[Row]) -> str:
    lines = []
    for method, name in NAMES.items():
        order = sorted(
            chosen(rows, method=method),
            key=lambda row: (row["arrivals"], row["start"], row["rule"], row["rate"], row["seed"]),
        )
        for row in order:
            how = [ARRIVALS[row["arrivals"]], row["start"], RULES[row["rule"]], f"{row['rate']:g}", str(row["seed"])]
            lines.append([name, *how, *_sent(row)])
    return table(["method", "arrivals", "begun", "rule", "α", "seed", *_SENT], lines)


def headline(rows: Rows) -> str:
    return _to_target(rows.get("headline", []))


def start(rows: Rows) -> str:
    """The first updates of each start."""
    lines = []
    for row in rows.get("start", []):
        accuracies = [percent(accuracy, 1) for updates, accuracy, _ in row["curve"] if updates in _BEGINNING]
        accuracies += ["lost" if row["trouble"] else NOTHING] * (len(_BEGINNING) - len(accuracies))
        lines.append([NAMES[row["method"]], row["start"], str(row["seed"]), *accuracies])
    return table(["method", "begun", "seed", *(f"after {count(updates)} updates" for updates in _BEGINNING)], lines)


_BEGINNING = (250, 500, 750, 1_000, 1_250, 1_500)


def memoryless(rows: Rows) -> str:
    return _to_target(rows.get("memoryless", []))


def beside(rows: Rows) -> str:
    """The paper's comparison, in each unit, of the first seed."""
    reported = [times(paper.LESS_THAN_ASGD), amount(paper.LESS_THAN_ASGD * paper.ADACOMP_BYTES)]
    lines = [["paper", "as the paper", "bytes of TCP", *reported, amount(paper.ADACOMP_BYTES)]]
    compared = [
        (f"{title}, begun {start}", rates, [of(rows, method, arrivals, start) for method in ("asgd", "adacomp-1")])
        for arrivals, title in ARRIVALS.items()
        for start in ("in turn", "together")
        for rates, of in (("as the paper", as_the_paper), ("each at the best that was tried", best))
    ]
    for title, rates, (dense, sparse) in compared:
        if dense or sparse:
            for what, (said, shown) in _UNITS.items():
                cells = [shown(row[what]) if row else NOTHING for row in (dense, sparse)]
                lines.append([title, rates, said, times(fewer(dense, sparse, what)), *cells])
    return table(["to 97 %", "rates and rules", "counted in", "times fewer", "ASGD", "AdaComp, 1 %"], lines)


_UNITS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "updates_to_target": ("updates", count),
    "entries": ("entries", power),
    "update_bytes": ("coded bytes", amount),
    "pickled_bytes": ("pickled bytes", amount),
}


def as_the_paper(rows: Rows, method: str, arrivals: str = "cycles", start: str = "together") -> Row | None:
    """At its rate and with its rule."""
    found = rows.get("headline" if arrivals == "cycles" else "memoryless", [])
    return there(one(found, method=method, rate=paper.RATE, start=start, seed=0))


def best(rows: Rows, method: str, arrivals: str = "cycles", start: str = "together") -> Row | None:
    """Of all rates and rules that were tried, the one that got to the target in the fewest updates."""
    tried = chosen(rows.get("tuned", []), method=method, arrivals=arrivals, start=start, seed=0)
    if start not in {row["start"] for row in rows.get("tuned", [])}:
        return None
    found = [row for row in (*map(there, tried), as_the_paper(rows, method, arrivals, start)) if row]
    return min(found, key=lambda row: int(row["updates_to_target"]), default=None)


def tuned(rows: Rows) -> str:
    """Every rate that was tried besides the paper's."""
    return _to_target(rows.get("tuned", []))


def handicap(rows: Rows) -> str:
    """One line a method: at the paper's rate, and at the best that was tried."""
    lines = []
    for arrivals, title in ARRIVALS.items():
        for method in ("asgd", "comp-asgd-1", "adacomp-1"):
            quickest = best(rows, method, arrivals)
            if quickest:
                papers = as_the_paper(rows, method, arrivals) or dict.fromkeys(SENT)
                how = f"α = {quickest['rate']:g}, rule {RULES[quickest['rule']]}"
                cells = [count(papers["updates_to_target"]), amount(papers["update_bytes"])]
                cells += [how, count(quickest["updates_to_target"]), amount(quickest["update_bytes"])]
                lines.append([title, NAMES[method], *cells])
    head = [
        "arrivals",
        "method",
        "updates, as the paper",
        "coded bytes",
        "best that was tried",
        "updates",
        "coded bytes",
    ]
    return table(head, lines)


def staleness(rows: Rows) -> str:
    lines = []
    for name, title in (("headline", "0.2 + U(0, 2)"), ("memoryless", "memoryless"), ("classes", "100 : 10 : 1")):
        found = one(rows.get(name, []), method="adacomp-1", images=60_000, start="together")
        if found:
            cells = [
                f"{found['staleness']:.0f}",
                f"{found['inverse_staleness']:.4f}",
                f"{found['place_staleness']:.1f}",
            ]
            lines.append([title, *cells])
    return table(["arrivals", "mean τ", "mean of 1/max(1, τ)", "mean σ of the places sent"], lines)


def crashes(rows: Rows) -> str:
    lines = []
    for (images, crash, workers), reported in paper.CRASHES.items():
        found = [
            row
            for row in chosen(rows.get("crashes", []), images=images, workers=workers)
            if bool(row["crash_chance"]) == crash
        ]
        if found:
            left = f"{workers - fmean(row['crashed'] for row in found):.0f}"
            cells = [percent(fmean(row["best"] for row in found), 2), count(found[0]["updates"]), left]
            lines.append([f"{images:,}", "yes" if crash else "no", str(workers), percent(reported, 2), *cells])
    head = ["images", "crashes", "workers", "paper, another network", "here, best", "after", "workers left"]
    return table(head, lines)


def classes(rows: Rows) -> str:
    lines = []
    for (images, several), reported in paper.HETEROGENEOUS.items():
        found = one(rows.get("classes" if several else "crashes", []), images=images, classes=several, crash_chance=0.0)
        if found:
            accuracies = {updates: accuracy for updates, accuracy, _ in found["curve"]}
            cells = [percent(accuracies.get(updates), 2) for updates in _LOOKED_AT]
            lines.append([f"{images:,}", "three" if several else "one", percent(reported, 2), *cells])
    head = ["images", "classes", "paper, 250,000 updates", *(f"here, {updates:,}" for updates in _LOOKED_AT)]
    return table(head, lines)


#: Figure 4 has several classes ahead at first, and behind later.
_LOOKED_AT = (2_000, 4_000, 8_000, 12_000)


def final(rows: Rows) -> str:
    """Accuracies in the end: of the long runs, or of the longest other run of a method that has none."""
    lines = []
    for method, reported in paper.FINAL.items():
        found = chosen(rows.get("final", []), method=method)
        if not found:
            more = chosen(rows.get("crashes", []), method=method, images=60_000, crash_chance=0.0)
            others = [row for row in (*chosen(rows.get("headline", []), method=method), *more) if not row["trouble"]]
            found = sorted(others, key=lambda row: int(row["updates"]))[-1:]
        if found:
            best = [row["best"] for row in found]
            each = f" ({', '.join(percent(one, 2) for one in best)})" if len(best) > 1 else ""
            updates = min(row["updates"] for row in found)
            cells = [percent(reported, 2), f"{percent(fmean(best), 2)}{each}", count(updates), found[0]["start"]]
            lines.append([NAMES[method], *cells])
    return table(["method", "paper, 250,000 updates", "here, best", "of so many updates", "begun"], lines)


def units(rows: Rows) -> str:
    """One update of each codec, by each way of counting."""
    lines = []
    every = [row for found in rows.values() for row in found if row["updates_to_target"]]
    for codec in ("dense", "top10%", "top1%", "top1%+ef+4bit"):
        found = one(every, codec=codec)
        if found:
            entries, coded, framed, pickled = (
                found[what] / found["updates_to_target"]
                for what in ("entries", "update_bytes", "frame_bytes", "pickled_bytes")
            )
            cells = [count(entries), count(coded), f"{8 * coded / entries:.1f}", count(framed), count(pickled)]
            lines.append([f"`{codec}`", *cells])
    return table(["one update", "entries", "coded bytes", "bits an entry", "with envelope", "pickled bytes"], lines)


def machine(kept: Kept) -> str:
    """The machine of the newest rows, and the size of all runs."""
    rows, newest = rows_of(kept), max(kept.values(), key=lambda told: told.date)
    took_s = sum(row["seconds"] for found in rows.values() for row in found)
    updates = sum(row["updates"] for found in rows.values() for row in found)
    return (
        f"{machine_of(newest.machine)}; {newest.date}; {sum(map(len, rows.values()))} runs, {updates:,} updates,"
        f" {took_s / 60:.0f} minutes in all."
    )


#: By the name of the mark in README.md. Each is drawn as soon as anything was measured.
TABLES = {
    "beside": Drawing(MEASURED, beside),
    "headline": Drawing(MEASURED, headline),
    "start": Drawing(("start",), start),
    "memoryless": Drawing(MEASURED, memoryless),
    "staleness": Drawing(MEASURED, staleness),
    "handicap": Drawing(MEASURED, handicap),
    "tuned": Drawing(MEASURED, tuned),
    "units": Drawing(MEASURED, units),
    "final": Drawing(MEASURED, final),
    "crashes": Drawing(MEASURED, crashes),
    "classes": Drawing(MEASURED, classes),
}
