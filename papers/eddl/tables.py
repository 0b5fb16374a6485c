"""The tables of README.md, each from its experiment's rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from statistics import fmean

from papers.eddl import accuracy, paper, splitting
from papers.eddl import own_split as own_split_of
from papers.eddl.batch_time import sync_share
from papers.eddl.setting import EPOCHS, RATES_MBIT
from papers.eddl.training_time import ratio, training_s
from papers.harness.rows import Row, chosen, of_one, one
from papers.harness.tables import NOTHING, count, decimal, number, percent, table
from shoal.topology.saturation import crew

SHOWN_SIZES = (1, 2, 4, 6, 8, 12, 16)


def batch_time(rows: list[Row]) -> str:
    head = ["Mb/s", "workers", "sync: l + 2nS/B", "sync, as the paper", "sync, Shoal"]
    head += ["async, as the paper", "async, at once, two-way port", "async, Shoal"]
    lines = []
    for rate in RATES_MBIT:
        for workers in SHOWN_SIZES:
            sync = one(rows, mbit=rate, workers=workers, pace="sync")
            late = one(rows, mbit=rate, workers=workers, pace="async")
            if sync and late:
                cells = [sync["formula"], sync["paper"], sync["shoal"], late["paper"], late["at once"], late["shoal"]]
                lines.append([f"{rate:g}", str(workers), *(decimal(cell) for cell in cells)])
    return table(head, lines)


def sync_shares(rows: list[Row]) -> str:
    lines = []
    for (rate, pace), reported in paper.SYNC_SHARE_OF_16.items():
        row = one(rows, mbit=rate, workers=16, pace=pace)
        if row:
            cells = [f"{sync_share(row[leader]):.2f}" for leader in ("paper", "at once", "shoal")]
            lines.append([f"{pace}, {rate:g} Mb/s", f"{reported:.2f}", *cells])
    return table(["16 workers", "paper", "as the paper, simulated", "two-way port, at once", "Shoal"], lines)


def accuracies(rows: list[Row]) -> str:
    head = ["training", "epochs", *(crew(workers) for workers in accuracy.SIZES)]
    lines = []
    for kind in accuracy.KINDS:
        for epoch in EPOCHS:
            cells = [_spread(chosen(rows, kind=kind, workers=workers), epoch) for workers in accuracy.SIZES]
            if any(cell != NOTHING for cell in cells):
                lines.append([kind, str(epoch), *cells])
    return table(head, lines)


def _spread(rows: list[Row], epoch: int) -> str:
    """The mean over seeds, and how far they lie apart."""
    values = [row[f"after_{epoch}"] for row in rows if row.get(f"after_{epoch}") is not None]
    if not values:
        return "diverged" if any(row["trouble"] for row in rows) else NOTHING
    half = (max(values) - min(values)) / 2
    return f"{100 * fmean(values):.1f}" + (f" ± {100 * half:.1f}" if len(values) > 1 else "") + " %"


def lenet(rows: list[Row]) -> str:
    lines = []
    for pace in ("sync", "async"):
        for workers in accuracy.LENET_SIZES:
            row = one(rows, kind=f"lenet, {pace}", workers=workers)
            if row:
                cells = [percent(row[f"after_{epoch}"], 1) for epoch in accuracy.LENET_EPOCHS]
                lines.append([pace, str(workers), *cells])
    return table(["LeNet", "workers", *(f"after {epoch}" for epoch in accuracy.LENET_EPOCHS)], lines)


def async_20(rows: list[Row]) -> str:
    """The two accuracies that the paper's text has, beside what is lost here."""
    lines = []
    for workers, reported in paper.ASYNC_20_ACCURACY.items():
        cells = [_spread(chosen(rows, kind=kind, workers=workers), 20) for kind in ("async, momentum 0", "sync")]
        lines.append([str(workers), percent(reported), *cells])
    return table(["workers", "paper, ASYNC-20", "here, ASYNC-20", "here, SYNC-20"], lines)


def own_split(rows: list[Row]) -> str:
    """Accuracy on the paper's own split, by kind and size, with the spread over seeds."""
    lines = []
    for kind in own_split_of.KINDS:
        for workers in own_split_of.SIZES:
            found = chosen(rows, kind=kind, workers=workers)
            if found:
                reported = found[0].get("reported_after_20")
                lines.append([kind, str(workers), *(_spread(found, epoch) for epoch in EPOCHS), percent(reported)])
    return table(["training", "workers", *(f"after {epoch}" for epoch in EPOCHS), "paper, after 20"], lines)


def families(rows: list[Row]) -> str:
    """The families whose sizes the paper's text has, the first, and the last."""
    malware = [row for row in rows if row["family"]]
    lines = [[f"all {len(malware)}", f"{paper.MALWARE:,}", f"{sum(row['apps'] for row in malware):,}"]]
    for row in malware:
        if row["family"] in (1, len(malware)) or row.get("reported"):
            lines.append([str(row["family"]), count(row.get("reported")), f"{row['apps']:,}"])
    return table(["family, by size", "paper", "DREBIN"], lines)


def communities(rows: list[Row]) -> str:
    """A community's model beside a global one, as the paper's Table 3 judges them."""
    lines = []
    for split in dict.fromkeys(row["split"] for row in rows):
        for model, reported in paper.COMMUNITY.items():
            found = chosen(rows, split=split, model=model)
            if not found:
                continue
            cells = [_over_seeds(found, key) for key in ("accuracy", "recall", "detected")]
            told = ", ".join(percent(each, 1) for each in reported)
            lines.append([split, model, f"{found[0]['apps']:,}", *cells, told])
    head = ["split by", "model", "apps learned", "classified", "recall", "detected"]
    return table([*head, "paper: classified, recall, detected"], lines)


def _over_seeds(rows: list[Row], key: str) -> str:
    values = [row[key] for row in rows]
    half = (max(values) - min(values)) / 2
    return f"{100 * fmean(values):.1f} ± {100 * half:.1f} %"


def training_time(rows: list[Row]) -> str:
    head = ["Mb/s", "workers", "SYNC-20, as the paper", "ASYNC-30, as the paper", "ratio, as the paper"]
    head += ["SYNC-20, Shoal", "ASYNC-30, Shoal", "ratio, Shoal"]
    lines = []
    for rate in RATES_MBIT:
        for workers in SHOWN_SIZES:
            cells = []
            for leader in ("paper", "shoal"):
                where = {"workers": workers, "mbit": rate}
                soon = training_s(rows, leader, epochs=EPOCHS[1], pace="sync", **where)
                late = training_s(rows, leader, epochs=EPOCHS[2], pace="async", **where)
                cells += [decimal(soon, 0), decimal(late, 0), decimal(ratio(rows, leader, workers=workers, mbit=rate))]
            if cells[0] != NOTHING:
                lines.append([f"{rate:g}", str(workers), *cells])
    return table(head, lines)


RULE_NAMES = {
    "bare": "BUC rose or not (the paper's)",
    "confidence": "gain with confidence (Shoal)",
    "law": "scaling law, USL",
}


def saturated(rows: list[Row]) -> str:
    head = ["pace, Mb/s", "paper says", "knee", "rule", "runs", "said so", "size: median", "from–to"]
    head += ["false alarms", "within ±1 of the knee"]
    lines = []
    for row in chosen(rows, what="rule"):
        reported = "none" if row["reported"] is None else str(row["reported"])
        knee = "none" if row["knee"] is None else str(row["knee"])
        between = NOTHING if row["size_least"] is None else f"{row['size_least']}–{row['size_most']}"
        line = [f"{row['pace']}, {row['mbit']:g}", reported, knee, RULE_NAMES[row["rule"]], str(row["runs"])]
        line += [str(row["said_so"]), number(row["size_median"]), between]
        lines.append([*line, percent(row["false_alarms"]), percent(row["within_1"])])
    return table(head, lines)


def split(rows: list[Row]) -> str:
    head = ["shape", *(f"{workers} (1-{leads}-{workers})" for workers, leads in paper.TREES.items()), "from"]
    lines = []
    for shape in splitting.SHAPES:
        found = [one(rows, shape=shape, workers=workers) for workers in paper.TREES]
        if all(found):
            cells = [_played(row) for row in found if row]
            origin = "simulated" if found[0] and found[0]["simulated_s"] is not None else "predicted"
            lines.append(
                [shape, *(f"{decimal(batch)} s, {decimal(whole / 60, 1)} min" for batch, whole in cells), origin]
            )
    return table(head, lines)


def _played(row: Row) -> tuple[float, float]:
    batch = row["simulated_s"] if row["simulated_s"] is not None else row["predicted_s"]
    return float(batch), float(row["training_s"])


def stragglers(rows: list[Row]) -> str:
    head = ["leader", "Mb/s", "slow of 8", "pace", "lent, s an epoch", "fixed shares, s an epoch", "ratio"]
    lines = [
        [
            "as the paper" if row["leader"] == "paper" else "Shoal",
            f"{row['mbit']:g}",
            str(row["stragglers"]),
            row["pace"],
            decimal(row["lent_s"], 1),
            decimal(row["fixed_s"], 1),
            decimal(row["ratio"]),
        ]
        for row in rows
    ]
    return table(head, lines)


def batch_size(rows: list[Row]) -> str:
    sizes = sorted({row["batch_size"] for row in rows})
    lines = []
    for workers in sorted({row["workers"] for row in rows}):
        of_these = [one(rows, workers=workers, batch_size=size) for size in sizes]
        cells = []
        for row in of_these:
            told = decimal(row["training_s"] / 60, 1) + " min" if row else NOTHING
            learned = row["accuracy"] if row else None
            cells.append(told + (f", {percent(learned, 1)}" if learned is not None else ""))
        lines.append([str(workers), *cells])
    return table(["workers", *(f"batch {size}" for size in sizes)], lines)


def overhead(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if "skipped" in row:
            continue
        # The paper's boards did not nice anything.
        reported = None if row["nice"] else row.get("reported_loss")
        cells = [percent(reported), percent(row["loss"], 1)]
        lines.append([row["work"], str(row["nice"]), *cells])
    return table(["own work", "niceness of the agent", "paper: slower by", "here: slower by"], lines)


def leading(rows: list[Row]) -> str:
    head = ["pace", "workers", "processor", "memory", "over the link", "own transfers lose", "paper"]
    head += ["own computing loses", "paper", "own copying loses", "paper"]
    lines = []
    for row in rows:
        if "skipped" in row:
            continue
        cells = [percent(row["leader_cpu_share"]) + " of a core", f"{row['leader_memory_mb']:.0f} MB"]
        cells.append(f"{row['leader_mbit']:.0f} Mb/s")
        for name in ("network_loss", "cpu_loss", "memory_loss"):
            cells += [percent(row.get(name)), percent(row.get(f"reported_{name}"))]
        lines.append([row["pace"], str(row["workers"]), *cells])
    return table(head, lines)


def testbed(rows: list[Row]) -> str:
    lines = [
        [row["pace"], str(row["workers"]), decimal(row["real_s"]), decimal(row["simulated_s"]), decimal(row["ratio"])]
        for row in rows
        if "skipped" not in row
    ]
    return table(["pace", "workers", "measured, s a batch", "simulated, s a batch", "measured / simulated"], lines)


#: By the name of the mark in README.md.
TABLES = {
    "batch_time": of_one("batch_time", batch_time),
    "sync_shares": of_one("batch_time", sync_shares),
    "accuracy": of_one("accuracy", accuracies),
    "async_20": of_one("accuracy", async_20),
    "lenet": of_one("accuracy", lenet),
    "own_split": of_one("own_split", own_split),
    "families": of_one("families", families),
    "communities": of_one("communities", communities),
    "training_time": of_one("training_time", training_time),
    "saturated": of_one("saturated", saturated),
    "splitting": of_one("splitting", split),
    "stragglers": of_one("stragglers", stragglers),
    "batch_size": of_one("batch_size", batch_size),
    "overhead": of_one("overhead", overhead),
    "leading": of_one("testbed", leading),
    "testbed": of_one("testbed", testbed),
}
