"""Runs every baseline on MNIST that is divided unequally, and prints a table: ``python -m baselines``.

It then measures figures that papers publish, each with three seeds (``baselines.published``). That takes hours; each
seed is noted when it is done, so a run that was stopped goes on where it was as long as the code is the same.
``--quick`` trains on fewer rows and devices, with one seed, and leaves out published figures. ``--published`` measures
them only, ``--only NAME`` runs one baseline or measures one figure only, and ``--rates`` tries learning rates for
figures whose paper does not say which it took.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import shoal
from baselines import dinh, mcmahan
from baselines.base import Baseline
from baselines.published import PublishedFigure, best_rate, measured
from shoal.errors import Misuse

NAMES = (
    *("fedavg", "fedprox", "scaffold", "feddyn", "fednova", "qfedavg"),
    *("median", "trimmed_mean", "krum", "fedper", "ditto", "pfedme", "power_of_choice"),
)
LINES_MOST = 40
#: Baselines of which published figures are measured.
MEASURED = ("FedAvg", "pFedMe")
FIGURES = {each.name: each for each in (*dinh.FIGURES, *mcmahan.FIGURES)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    rows: int = 60_000
    devices: int = 100
    versions: int = 30
    seeds: int = 3


QUICK = Size(rows=4_000, devices=20, versions=10, seeds=1)


def plan_of(baseline: Baseline, size: Size) -> shoal.Plan:
    keys: dict[str, Any] = {
        "data": "local",
        "pace": "sync",
        "workers_min": size.devices,
        "workers_max": size.devices,
        "cohort": 10,
        "sampling": "uniform",
        "epoch_leases": 10,
        "lease_batches": 5,
        "batch_size": 32,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "until": shoal.epochs(size.versions),
    }
    return shoal.Plan(**{**keys, **baseline.plan})


def row_of(name: str, baseline: Baseline, size: Size, *, progress: bool) -> dict[str, Any]:
    began_s = time.process_time()
    series = shoal.simulate(
        baseline.task(rows=size.rows),
        algorithm=baseline.algorithm() if baseline.algorithm is not None else None,
        devices=size.devices,
        partition="dirichlet(0.1)",
        plan=plan_of(baseline, size),
        seeds=size.seeds,
        name=baseline.name,
        progress=progress,
    )
    accuracy = series.final(baseline.metric)
    if accuracy is None:
        raise Misuse(f"{baseline.name}: {series.lacking(baseline.metric)}")
    return {
        "name": baseline.name,
        "file": f"baselines/{name}.py",
        "lines": len((Path(__file__).parent / f"{name}.py").read_text().splitlines()),
        "paper": baseline.paper,
        "metric": baseline.metric,
        "accuracy": round(accuracy.mean, 4),
        "half": None if accuracy.half is None else round(accuracy.half, 4),
        "seeds": size.seeds,
        "finished": all(outcome.state == "finished" for outcome in series.outcomes),
        "refused": sum(outcome.refused for outcome in series.outcomes),
        "published": baseline.published,
        "hash": series.to_plain()["hash"],
        "cpu_s": round(time.process_time() - began_s, 1),
    }


def _figures(chosen: argparse.Namespace) -> list[PublishedFigure]:
    return [FIGURES[chosen.only]] if chosen.only else list(FIGURES.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m baselines", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--only", choices=(*NAMES, *FIGURES))
    chosen = parser.parse_args()
    if chosen.rates:
        for figure in _figures(chosen):
            if figure.name in mcmahan.NAMES:
                found = best_rate(figure, mcmahan.RATES, mcmahan.RATE_SEED, progress=not chosen.json)
                print(json.dumps(found), flush=True)
        return 0
    size = QUICK if chosen.quick else Size()
    names = () if chosen.published or chosen.only in FIGURES else (chosen.only,) if chosen.only else NAMES
    is_published = chosen.published or chosen.only in FIGURES or not (chosen.quick or chosen.only)
    rows = []
    for name in names:
        baseline = importlib.import_module(f"baselines.{name}").BASELINE
        rows.append(row_of(name, baseline, size, progress=not chosen.json))
        if not chosen.json:
            row = rows[-1]
            half = "" if row["half"] is None else f" +- {100 * row['half']:.2f}"
            print(f"{row['name']:16} {100 * row['accuracy']:6.2f}{half} %   {row['paper']}")
    figures = [measured(each, progress=not chosen.json) for each in _figures(chosen)] if is_published else []
    for each in figures if not chosen.json else ():
        print(f"{each['row']}: {each['paper']} in the paper, {each['here']} here")
    result: dict[str, Any] = {
        "baselines": len(rows),
        "lines_most": max((row["lines"] for row in rows), default=0),
        "reproduced": sum(each["is_inside"] for each in figures) if is_published else None,
        "not_reproduced": [
            {key: each[key] for key in ("row", "paper", "here", "why")} for each in figures if not each["is_inside"]
        ],
        "figures": figures,
        "no_data_here": sorted({f"{row['name']}: {row['published']}" for row in rows if row["name"] not in MEASURED}),
        "table": rows,
    }
    if chosen.json:
        print(json.dumps(result))
    is_well = all(row["finished"] for row in rows) and result["lines_most"] <= LINES_MOST
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
