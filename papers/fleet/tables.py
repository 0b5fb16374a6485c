"""The tables of README.md, each from rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterable

from papers.fleet import paper, thresholds
from papers.fleet.headline import OURS, fewer, headline
from papers.harness.rows import Drawing, Row, Rows, chosen, one
from papers.harness.tables import NOTHING, count, number, percent, table, times

#: The splits of Figure 9, in words.
SPLITS = {"hundred": "100, two shards each", "ten": "the authors' 10"}


def steps(value: float | None) -> str:
    return "not reached" if value is None else f"{value:,.0f}"


def every(values: Iterable[int | None]) -> str:
    return ", ".join(NOTHING if value is None else f"{value:,}" for value in values)


def judged(rows: Rows) -> str:
    """What was asked for and what came out."""
    told = headline(rows)
    lines = []
    for staleness, reported in paper.FEWER_STEPS.items():
        for how, name in (("paper", "at the paper's rate"), ("tuned", "each at its best rate")):
            for key, rule in (("adasgd", "AdaSGD as printed"), ("released", "AdaSGD as released")):
                found = told.get(f"{key}_fewer_steps_{staleness}_{how}")
                words = f"{rule}, fewer steps than DynSGD, {staleness}, {name}"
                lines.append([words, percent(reported, 1), percent(found, 1)])
    for key, rule in (("dynsgd", "DynSGD"), ("printed", "AdaSGD as printed"), ("released", "AdaSGD as released")):
        aim = "above DynSGD" if key != "dynsgd" else NOTHING
        lines.append([f"Figure 9, class 0 at the end, {rule}", aim, percent(told.get(f"class0_{key}"))])
    best = f"best of ours ({told['best_rule_D2']})" if "best_rule_D2" in told else "best of ours"
    lines.append([f"{best}, D2, each at its best rate", "aim: 25 %", percent(told.get("best_fewer_steps_D2"), 1)])
    for key, name in (
        ("f1_online_over_daily", "F1@5, hourly over daily updates, no resets"),
        ("f1_online_over_daily_reset_second_day", "the same, reset every two days, second days"),
        ("f1_online_over_daily_reset", "the same, reset every two days, both days"),
    ):
        lines.append([name, times(paper.ONLINE_OVER_DAILY), times(told.get(key))])
    for key, name in (("f1_online_over_last_hour", "last hour"), ("f1_online_over_last_day", "last day")):
        lines.append([f"F1@5, hourly updates over the most popular of the {name}", "above 1", times(told.get(key))])
    return table(["", "paper, or aim", "here"], lines)


def late(rows: Rows) -> str:
    """Steps of every rule, tuned and at the paper's rate, beside DynSGD's."""
    found = [*rows.get("late", []), *rows.get("paper_rate", [])]
    lines = []
    for staleness in ("D2", "D1"):
        names = list(dict.fromkeys(row["rule"] for row in found if row["staleness"] == staleness))
        names += ["ssgd"] if "ssgd" not in names else []
        for name in names:
            where = "none" if name == "ssgd" else staleness
            at_best = one(found, rule=name, staleness=where, how="tuned", split="shards")
            at_paper = one(found, rule=name, staleness=where, how="paper", split="shards")
            if at_best is None and at_paper is None:
                continue
            cells = [staleness, f"**{name}**" if name in OURS else name]
            for row, how in ((at_paper, "paper"), (at_best, "tuned")):
                dynsgd = one(found, rule="dynsgd", staleness=staleness, how=how, split="shards")
                cells += [NOTHING, NOTHING] if row is None else [_reached(row), percent(fewer(row, dynsgd))]
            cells += [number(at_best["rate"]) if at_best else NOTHING, _weight(at_best or at_paper)]
            lines.append(cells)
    head = ["staleness", "rule", "steps at the paper's rate", "fewer than DynSGD", "steps at its best rate"]
    return table([*head, "fewer than DynSGD", "best rate", "mean weight"], lines)


def _reached(row: Row) -> str:
    return f"{steps(row['median'])} ({every(row['steps_to_80'])})"


def _weight(row: Row | None) -> str:
    return NOTHING if row is None or row["weight"] is None else f"{row['weight']:.2f}"


def tried(rows: Rows) -> str:
    lines = [
        [row["staleness"], row["rule"], "; ".join(f"{rate}: {count(found)}" for rate, found in row["tried"].items())]
        for row in rows.get("late", [])
        if row["tried"]
    ]
    return table(["staleness", "rule", "rate: median steps to 80 % (– where one before it was sooner)"], lines)


def of_means(rows: Rows) -> str:
    lines = [
        [row["rule"], number(row["rate"]), steps(row["median"]), percent(row["final"])]
        for row in chosen(rows.get("paper_rate", []), how="of means")
    ]
    return table(["rule, D2", "rate of mean gradients", "steps to 80 %", "accuracy at the end"], lines)


def writers(rows: Rows) -> str:
    return _simple(rows.get("writers", []))


def alike(rows: Rows) -> str:
    return _simple(rows.get("alike", []))


def _simple(found: list[Row]) -> str:
    lines = []
    for name in dict.fromkeys(row["rule"] for row in found):
        at_best, at_paper = one(found, rule=name, how="tuned"), one(found, rule=name, how="paper")
        cells = [name]
        for row, how in ((at_paper, "paper"), (at_best, "tuned")):
            dynsgd = one(found, rule="dynsgd", how=how)
            cells += [NOTHING, NOTHING] if row is None else [_reached(row), percent(fewer(row, dynsgd))]
        lines.append([*cells, number(at_best["rate"]) if at_best else NOTHING])
    head = ["rule, D2", "steps at rate 0.05", "fewer than DynSGD", "steps at its best rate", "fewer than DynSGD"]
    return table([*head, "best rate"], lines)


def ten(rows: Rows) -> str:
    """Steps with the authors' ten clients: as Figure 8 otherwise, and with their decay."""
    found = rows.get("ten", [])
    lines = []
    for staleness, name in dict.fromkeys((row["staleness"], row["rule"]) for row in found):
        cells = [staleness, name]
        for how in ("paper", "decayed"):
            row = one(found, staleness=staleness, rule=name, how=how)
            dynsgd = one(found, staleness=staleness, rule="dynsgd", how=how)
            cells += [NOTHING, NOTHING] if row is None else [_reached(row), percent(fewer(row, dynsgd))]
        decayed = one(found, staleness=staleness, rule=name, how="decayed")
        lines.append([*cells, number(decayed["rate"]) if decayed else NOTHING])
    head = ["staleness", "rule", "steps at rate 0.05", "fewer than DynSGD", "steps with decay", "fewer with decay"]
    return table([*head, "first rate"], lines)


def long_tail(rows: Rows) -> str:
    lines = [
        [
            SPLITS[row["split"]],
            row["rule"],
            steps(row["class_0_steps_to_80"]),
            f"{percent(row['class_0_final'])} ({', '.join(percent(each) for each in row['class_0_finals'])})",
            steps(row["steps_to_80"]),
            percent(row["final"]),
        ]
        for row in rows.get("long_tail", [])
    ]
    return table(
        ["users", "rule", "class 0: steps to 80 %", "class 0 at the end", "all: steps to 80 %", "all at the end"], lines
    )


def private(rows: Rows) -> str:
    lines = [
        [
            row["rule"],
            number(row["multiplier"]),
            NOTHING if row["epsilon"] is None else f"{row['epsilon']:.1f}",
            NOTHING if row["epsilon_if_poisson"] is None else f"{row['epsilon_if_poisson']:.1f}",
            percent(row["final"], 1),
            steps(row["steps_to_80"]),
        ]
        for row in rows.get("private", [])
    ]
    head = ["rule", "noise z", "ε", "ε if batches were Poisson samples", "accuracy at the end", "steps to 80 %"]
    return table(head, lines)


def refusing(rows: Rows) -> str:
    found = rows.get("thresholds", [])
    whole = one(found, threshold="size", share=0.0)
    reported = {"size": paper.DROPPED_SMALL, "similarity": paper.DROPPED_SIMILAR}
    lines = []
    for row in found:
        share, cost = reported[row["threshold"]]
        lost, early = (NOTHING if whole is None else _lost(whole, row, at) for at in ("final", "early"))
        near = abs(row["dropped"] - share) < 0.05
        lines.append(
            [
                "smallest batches" if row["threshold"] == "size" else "most similar users",
                percent(row["share"]),
                percent(row["dropped"], 1),
                percent(row["final"], 1),
                early,
                lost,
                f"{100 * cost:.1f} points at {100 * share:.1f} %" if near else NOTHING,
            ]
        )
    head = ["refused", "percentile", "share dropped", f"accuracy after {thresholds.STEPS:,} requests"]
    return table([*head, f"lost after {thresholds.EARLY_STEPS}", "lost", "paper"], lines)


def _lost(whole: Row, row: Row, at: str) -> str:
    return f"{100 * (whole[at] - row[at]):.1f} points"


def budgets(rows: Rows) -> str:
    lines = []
    for row in rows.get("budgets", []):
        budget, digits = paper.BUDGETS[row["unit"]], 2 if row["unit"] == "seconds" else 3
        unit = "s" if row["unit"] == "seconds" else "points"
        size = f"{budget.size:g} s" if row["unit"] == "seconds" else f"{budget.size:g} % of a battery"
        reported = budget.off.get(row["profiler"])
        lines.append(
            [
                size,
                PROFILERS[row["profiler"]],
                NOTHING if reported is None else f"{reported:g} {unit}",
                f"{row['off']:.{digits}f} {unit}",
                f"{min(row['by_seed']):.{digits}f} to {max(row['by_seed']):.{digits}f}",
            ]
        )
    return table(["budget", "profiler", "paper: nine of ten off by at most", "here, median of seeds", "seeds"], lines)


#: Of Figures 12 and 13.
PROFILERS = {"ours": "ours", "plain": "ours, no margin", "iprof": "I-Prof", "maui": "MAUI"}


def online(rows: Rows) -> str:
    found = rows.get("online", [])
    lines = []
    for row in chosen(found, what="model"):
        name = f"{row['pace']} updates"
        name += ", reset every two days" if row["reset_days"] else ""
        second = f"{row['f1_second_day']:.4f}" if row["reset_days"] else NOTHING
        lines.append([name, f"{row['f1']:.4f}", second, number(row["rate"]), f"{row['gradients']:,}"])
    for row in chosen(found, what="popular"):
        lines.append([f"most popular, {row['window']}", f"{row['f1']:.4f}", NOTHING, NOTHING, NOTHING])
    return table(["", "F1@5", "second days alone", "rate", "gradients"], lines)


def months(rows: Rows) -> str:
    """Hourly over daily without resets, by 30 days: the mean of days, so that a busy one counts as any other."""
    models = chosen(rows.get("online", []), what="model", reset_days=None)
    hourly, daily = (one(models, pace=pace) for pace in ("hourly", "daily"))
    if hourly is None or daily is None:
        return NOTHING
    head, cells = ["days"], ["hourly over daily"]
    for first in range(0, len(daily["by_day"]) - 1, 30):
        last = min(first + 30, len(daily["by_day"]))
        # The first day has no daily model.
        found = [sum(row["by_day"][max(1, first) : last]) for row in (hourly, daily)]
        head.append(f"{first + 1}–{last}")
        cells.append(times(found[0] / found[1]) if found[1] else NOTHING)
    return table(head, [cells])


def stream(rows: Rows) -> str:
    told = one(rows.get("online", []), what="stream")
    if told is None:
        return NOTHING
    return (
        f"{told['posts']:,} posts with {told['tags']:,} tags in {told['hours'] / 24:.0f} days, "
        f"{told['posts_an_hour']:.0f} an hour; {percent(told['uses_of_tags_first_seen_today'])} of all uses of a "
        "tag are on the day on which it first came."
    )


def staleness(rows: Rows) -> str:
    lines = [
        [
            row["clock"],
            times(row["speed"], 0),
            f"{row['mean']:.1f}",
            f"{row['median']:.0f}",
            percent(row["beyond"], 1),
            percent(row["beyond_3_deviations"], 1),
            f"{row['p99_7']:.0f}",
            f"{row['most']:,}",
        ]
        for row in rows.get("staleness", [])
    ]
    head = ["posts' clock", "faster by", "mean", "median", f"beyond {paper.TAIL_FROM}", "beyond 3 deviations", "99.7 %"]
    return table([*head, "most"], lines)


#: By the name of the mark in README.md.
TABLES = {
    "judged": Drawing(("late", "paper_rate", "long_tail", "online"), judged),
    "late": Drawing(("late", "paper_rate"), late),
    "tried": Drawing(("late",), tried),
    "of_means": Drawing(("paper_rate",), of_means),
    "writers": Drawing(("writers",), writers),
    "long_tail": Drawing(("long_tail",), long_tail),
    "ten": Drawing(("ten",), ten),
    "alike": Drawing(("alike",), alike),
    "private": Drawing(("private",), private),
    "thresholds": Drawing(("thresholds",), refusing),
    "budgets": Drawing(("budgets",), budgets),
    "online": Drawing(("online",), online),
    "stream": Drawing(("online",), stream),
    "months": Drawing(("online",), months),
    "staleness": Drawing(("staleness",), staleness),
}
