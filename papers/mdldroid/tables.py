"""The tables of README.md, each from rows. Pure: rows in, Markdown out."""

from __future__ import annotations

from statistics import fmean

from papers.harness.rows import Drawing, Row, Rows, chosen, one
from papers.harness.tables import NOTHING, decimal, number, percent, table, times
from papers.mdldroid import paper
from papers.mdldroid.decisions import random_chance, threshold
from papers.mdldroid.headline import PAPER_SIZES, change, headline
from papers.mdldroid.paper import RELEARNING
from papers.mdldroid.schedulers import TRAINING
from papers.mdldroid.speed import against_master, against_one

SHOWN = (
    "ours",
    "tree, in step",
    "ring",
    "ring, N hops",
    "dqn",
    "perfect agent",
    "dqn, timed",
    "dqn, asked again",
    "any two free",
)


def signed(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{100 * value:+.{digits}f} %".replace("-", "−")


def points(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:+.1f} points".replace("-", "−")


def of_tree(changed: float | None) -> str:
    """Where less than a hundredth is left, a change in per cent says nothing."""
    if changed is None:
        return NOTHING
    left = 100 * (1 + changed)
    return f"{left:.0f} % of the tree's" if left >= 1 or not left else f"{left:.2g} % of the tree's"


def judged(rows: Rows) -> str:
    """What the paper says and what came out."""
    told = headline(rows)
    found = rows.get("accuracy", [])
    lines = []
    for devices, loses in paper.NEIGHBOUR_LOSES.items():
        central, near = one(found, method="central"), _of(found, "neighbour", devices)
        chain = _of(found, "chain", devices)
        lost = None if central is None or near is None else near["accuracy"] - central["accuracy"]
        lines.append([f"NeighborSGD against one model, N = {devices}", points(-loses), points(lost)])
        lost = None if near is None or chain is None else near["accuracy"] - chain["accuracy"]
        lines.append([f"NeighborSGD against the chain, N = {devices}", points(-loses), points(lost)])
    chain, central = _of(found, "chain", 9), one(found, method="central")
    lines.append(["chain, N = 9, 1-E20", percent(paper.HAR["chain at 1-E20"], 1), _accuracy(chain)])
    lines.append(["one model, all data", percent(paper.HAR["server"], 1), _accuracy(central)])
    for other, name, reported in (("tree", "tree", paper.TIME_VS_TREE), ("ring", "ring", paper.TIME_VS_RING)):
        lines.append([f"round against {name}", signed(reported), signed(told.get(f"makespan_vs_{other}"))])
        lines.append(
            [f"round beyond the ideal, against {name}", signed(reported), signed(told.get(f"latency_vs_{other}"))]
        )
    reported_variance = signed(paper.VARIANCE_VS_TREE)
    lines += [
        [
            "energy's variance against tree, one round",
            reported_variance,
            signed(told.get("variance_vs_tree_one_round")),
        ],
        ["energy's variance against tree, 200 rounds", "not said", of_tree(told.get("variance_vs_tree"))],
        ["the paper's DQN against the optimum", "not said", times(told.get("dqn_over_exact"))],
    ]
    for bar, explored in told.get("explore", {}).items():
        for name, reported in paper.EXPLORE.items():
            ratio = explored.get(name, {}).get("seconds_vs_TDGE")
            lines.append([f"learning with {name} against TDGE, seconds, to {bar}", times(reported, 1), times(ratio)])
    low, high = paper.SPEEDUP_VS_ONE
    one_by_size = told.get("speedup_vs_one", {})
    span = f"{min(one_by_size.values()):.1f}x to {max(one_by_size.values()):.1f}x" if one_by_size else NOTHING
    lines.append(["against one device", f"{low:g}x to {high:g}x", span])
    lines.append(
        ["against a master, mean", times(paper.SPEEDUP_VS_MASTER, 1), times(told.get("speedup_vs_master_mean"))]
    )
    return table(["", "paper", "here"], lines)


def _of(rows: list[Row], method: str, devices: int, **more: object) -> Row | None:
    return one(rows, method=method, devices=devices, **{"split": "people", "theta": "samples", **more})


def _accuracy(row: Row | None) -> str:
    return NOTHING if row is None else f"{100 * row['accuracy']:.1f} %"


def _seeds(row: Row | None) -> str:
    if row is None:
        return NOTHING
    return f"{100 * row['accuracy']:.1f} % ({', '.join(f'{100 * value:.1f}' for value in row['by_seed'])})"


def accuracy(rows: Rows) -> str:
    found = rows.get("accuracy", [])
    central = one(found, method="central")
    lines = [["one model, all data", _seeds(central), _seeds(central), _seeds(central)]]
    for method, name in (
        ("chain", "chain (Eq. 3, θ = samples)"),
        ("neighbour", "NeighborSGD in a chain: halves"),
        ("literal", "chain, with the factor N − 1 as printed"),
    ):
        lines.append([name, *(_seeds(_of(found, method, devices)) for devices in (3, 6, 9))])
    return table(["test accuracy, mean of seeds (each)", "N = 3", "N = 6", "N = 9"], lines)


def readings(rows: Rows) -> str:
    found = rows.get("accuracy", [])
    lines = []
    for name, row in (
        ("chain, whole people to each device", _of(found, "chain", 9)),
        ("chain, θ = 1", _of(found, "chain", 9, theta="one")),
        ("chain, windows at random (as the paper)", _of(found, "chain", 9, split="random")),
        ("NeighborSGD, windows at random", _of(found, "neighbour", 9, split="random")),
        ("NeighborSGD, another order each round", _of(found, "neighbour, reshuffled", 9)),
        ("NeighborSGD as gossip on a ring, mean of devices", _of(found, "gossip", 9)),
        ("chain, one device has 8 people and five have one, θ = samples", _of(found, "chain", 9, split="unequal")),
        ("the same, θ = 1", _of(found, "chain", 9, split="unequal", theta="one")),
        ("one device alone, its own people", _of(found, "alone", 9)),
    ):
        lines.append([name, _seeds(row)])
    return table(["N = 9", "test accuracy, mean of seeds (each)"], lines)


def exactness(rows: Rows) -> str:
    found = [row["apart"] for row in rows.get("accuracy", []) if row["method"] == "chain"]
    if not found:
        return NOTHING
    return f"In all runs the chain's mean was within {max(found):.0e} of a master's, relative to its largest value."


def schedulers(rows: Rows) -> str:
    found = rows.get("schedulers", [])
    lines = []
    for size in sorted({row["devices"] for row in found}):
        cells = [one(found, devices=size, scheduler=name) for name in SHOWN]
        lines.append([str(size), *(NOTHING if cell is None else f"{cell['makespan']:.2f}" for cell in cells)])
    return table(["devices", *SHOWN], lines)


def exact(rows: Rows) -> str:
    found = [row for row in chosen(rows.get("schedulers", []), scheduler="ours") if "exact_tried" in row]
    equal, tried = (sum(row[key] for row in found) for key in ("exact_equal", "exact_tried"))
    furthest = max(row["over_bound_most"] for row in chosen(rows["schedulers"], scheduler="ours"))
    return (
        f"Ours was as early as the exact optimum in {equal:,} of {tried:,}; over all patterns and sizes it was at most "
        f"{furthest:.2f} merges above the lower bound (less than one is proved)."
    )


def shares(rows: Rows) -> str:
    """The paper's percentages in every reading."""
    found = rows.get("schedulers", [])
    lines = []
    for name, other, reported in (
        ("tree, in step", "tree, in step", paper.TIME_VS_TREE),
        ("tree, each pair as soon as it can", "tree", paper.TIME_VS_TREE),
        ("ring", "ring", paper.TIME_VS_RING),
        ("ring, N hops", "ring, N hops", paper.TIME_VS_RING),
    ):
        cells = []
        for sizes in (PAPER_SIZES, None):
            cells += [
                signed(change(found, key, "ours", other, sizes)) for key in ("makespan", "latency_ideal", "latency")
            ]
        lines.append([name, signed(reported), *cells, signed(with_training(found, other))])
    head = ["ours against", "paper", "round, N 3–9", "beyond the ideal", "beyond its own idle round"]
    head += ["round, N 3–16", "beyond the ideal", "beyond its own idle round", f"with {TRAINING:g} merges of training"]
    return table(head, lines)


def with_training(rows: list[Row], other: str) -> float | None:
    """Eq. 5: what is left of it when every round also trains."""
    found = [{**row, "whole": row["makespan"] + TRAINING} for row in rows if row["scheduler"] in ("ours", other)]
    return change(found, "whole", "ours", other)


def energy(rows: Rows) -> str:
    found = rows.get("schedulers", [])
    lines = []
    for name in SHOWN:
        own = chosen(found, scheduler=name)
        if own:
            one_round = signed(change(found, "variance_round", name, "tree, in step"))
            many = of_tree(change(found, "variance_rounds", name, "tree, in step"))
            mean = fmean(row["variance_rounds"] for row in own if row["devices"] <= max(PAPER_SIZES))
            lines.append([name, one_round, many, decimal(mean, 1)])
    return table(["scheduler", "one round, against tree", "200 rounds", "variance after 200 rounds, N 3–9"], lines)


def agents(rows: Rows) -> str:
    lines = []
    for row in chosen(rows.get("schedulers", []), scheduler="dqn"):
        perfect = one(rows["schedulers"], devices=row["devices"], scheduler="perfect agent")
        lines.append(
            [
                str(row["devices"]),
                f"{row['games']:,}",
                decimal(row["learning_s"], 1),
                decimal(row["return"]),
                decimal(row["return_ours"]),
                decimal(row["return_best"]),
                percent(row["invalid"]),
                times(row["over_optimum"]),
                times(perfect["over_optimum"] if perfect else None),
                percent(row["optimal_share"]),
            ]
        )
    head = ["devices", "games", "CPU seconds", "reward (7): DQN", "earliest-two", "most there is", "needed help"]
    return table([*head, "DQN over optimum", "perfect agent over optimum", "rounds it was optimal"], lines)


def chances(rows: Rows) -> str:
    sizes = (3, 5, 7, 9, 12, 16)
    return table(
        ["devices", *(str(size) for size in sizes)],
        [
            ["chance that a game of random choices ends well", *(f"{random_chance(size):.1e}" for size in sizes)],
            ["T(N), Φ = 0", *(f"{threshold(size):.2f}" for size in sizes)],
        ],
    )


def lengths(rows: Rows) -> str:
    found = rows.get("lengths", [])
    lines = []
    for longest in sorted({row["longest"] for row in found}):
        own = chosen(found, longest=longest)
        cells = [
            signed(change(own, key, "ours", other))
            for other in ("tree, in step", "ring", "ring, N hops")
            for key in ("makespan", "latency_ideal")
        ]
        lines.append([number(longest), *cells])
    head = ["busy at most, merges", "round vs tree", "beyond the ideal", "round vs ring", "beyond the ideal"]
    return table([*head, "round vs ring, N hops", "beyond the ideal"], lines)


def explore(rows: Rows) -> str:
    found = [*rows.get("explore", []), *rows.get("offset", [])]
    lines = []
    for bar in dict.fromkeys(row["bar"] for row in found):
        for size in sorted({row["devices"] for row in found}):
            cells = []
            for name in ("TDGE", "TGE", "DGE", "plain"):
                row = one(found, bar=bar, devices=size, strategy=name)
                missed = f", {row['not_reached']} of {row['runs']} not" if row and row["not_reached"] else ""
                cells.append(NOTHING if row is None else f"{row['games']:.0f} ({row['seconds']:.2f} s{missed})")
            lines.append([bar, str(size), *cells])
        ratios = headline({"explore": found})["explore"][bar]
        cells = [
            f"{ratios[name]['games_vs_TDGE']:.2f}x ({ratios[name]['seconds_vs_TDGE']:.2f}x)"
            for name in ("TDGE", "TGE", "DGE", "plain")
        ]
        lines.append([bar, "against TDGE", *cells])
    return table(["threshold", "devices", "TDGE: games (CPU time)", "TGE", "DGE", "plain ε"], lines)


def memory(rows: Rows) -> str:
    found = rows.get("memory", [])
    names = list(dict.fromkeys(row["how"] for row in found))
    lines = []
    for size in sorted({row["devices"] for row in found}):
        cells = [one(found, how=name, devices=size) for name in names]
        lines.append([str(size), *(NOTHING if cell is None else f"{cell['peak_mb']:.0f}" for cell in cells)])
    return table(["devices; peak MB of", *names], lines)


def speed(rows: Rows) -> str:
    lines = []
    for row in chosen(rows.get("speed", []), what="testbed"):
        lines.append(
            [
                str(row["devices"]),
                decimal(row["one_s"]),
                decimal(row["chain_s"]),
                decimal(row["model_chain_s"]),
                decimal(row["master_s"]),
                decimal(row["model_master_s"]),
                times(against_one(row)),
                times(against_master(row)),
            ]
        )
    head = ["devices", "one device, s", "chain, s", "chain, by the model", "master, s", "master, by the model"]
    return table([*head, "chain against one", "chain against master"], lines)


def flock(rows: Rows) -> str:
    lines = []
    for row in rows.get("flocks", []):
        cells = [decimal(row["one_s"], 0), decimal(row["flock_s"], 1), decimal(row["master_s"], 1)]
        ratios = [times(row["one_s"] / row["flock_s"]), times(row["master_s"] / row["flock_s"])]
        moved = [decimal(row["flock_mb"], 1), decimal(row["flock_most_mb"], 1), decimal(row["master_mb"], 1)]
        lines.append([str(row["devices"]), *cells, *ratios, *moved, times(row["master_mb"] / row["flock_mb"])])
    found = rows.get("flocks", [])
    if found:
        mean = fmean(row["master_s"] / row["flock_s"] for row in found)
        lines.append(["mean", NOTHING, NOTHING, NOTHING, NOTHING, times(mean), *[NOTHING] * 4])
    head = ["devices", "one device, s", "flock, s", "master, s", "against one", "against a master", "MB: a peer's mean"]
    return table([*head, "MB: the busiest peer", "MB: the master", "master over a peer's mean"], lines)


def aggregating(rows: Rows) -> str:
    lines = []
    for row in rows.get("aggregating", []):
        cells = [decimal(row["held_s"], 3), decimal(row["in_turn_s"], 3), times(row["in_turn_s"] / row["held_s"], 1)]
        held_s, in_turn_s = paper.AGGREGATING_S
        reported = [decimal(held_s, 3), decimal(in_turn_s, 3), times(in_turn_s / held_s, 0)]
        lines.append(
            [str(row["devices"]), *cells, *(reported if row["devices"] == paper.AGGREGATING_OF else [NOTHING] * 3)]
        )
    head = ["models", "in memory, s", "from files in turn, s", "files over memory"]
    return table([*head, "paper: in memory, s", "paper: in turn, s", "paper: files over memory"], lines)


def relearn(rows: Rows) -> str:
    found = rows.get("relearn", [])
    lines = []
    for size in sorted({row["devices"] for row in found}):
        cells, base = [], one(found, devices=size, strategy="TDGE")
        for name in RELEARNING:
            row = one(found, devices=size, strategy=name)
            missed = f", {row['not_reached']} of {row['runs']} not" if row and row["not_reached"] else ""
            cells.append(NOTHING if row is None else f"{row['games']:.0f} ({row['seconds']:.2f} s{missed})")
        dge = one(found, devices=size, strategy="DGE")
        ratio = dge["seconds"] / base["seconds"] if dge and base and base["seconds"] else None
        lines.append([str(size), *cells, times(ratio)])
    return table(["devices", *(f"{name}: games (CPU time)" for name in RELEARNING), "DGE over TDGE, time"], lines)


def links(rows: Rows) -> str:
    found = chosen(rows.get("speed", []), what="model")
    sizes = sorted({row["devices"] for row in found})
    lines = []
    for share in sorted({row["share"] for row in found}):
        cells = []
        for size in sizes:
            row = one(found, share=share, devices=size)
            cells.append(NOTHING if row is None else f"{1 / row['chain']:.1f}x, {row['master'] / row['chain']:.1f}x")
        lines.append([percent(share, 1), *cells])
    return table(["a merge, of one device's epoch", *(f"N = {size}" for size in sizes)], lines)


#: By the name of the mark in README.md.
TABLES = {
    "judged": Drawing(("accuracy", "schedulers", "explore", "speed"), judged),
    "accuracy": Drawing(("accuracy",), accuracy),
    "exactness": Drawing(("accuracy",), exactness),
    "readings": Drawing(("accuracy",), readings),
    "schedulers": Drawing(("schedulers",), schedulers),
    "exact": Drawing(("schedulers",), exact),
    "shares": Drawing(("schedulers",), shares),
    "energy": Drawing(("schedulers",), energy),
    "agents": Drawing(("schedulers",), agents),
    "lengths": Drawing(("lengths",), lengths),
    "chances": Drawing(("schedulers",), chances),
    "explore": Drawing(("explore",), explore),
    "memory": Drawing(("memory",), memory),
    "speed": Drawing(("speed",), speed),
    "links": Drawing(("speed",), links),
    "flock": Drawing(("flocks",), flock),
    "relearn": Drawing(("relearn",), relearn),
    "aggregating": Drawing(("aggregating",), aggregating),
}
