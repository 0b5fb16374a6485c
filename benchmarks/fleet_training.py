"""How long a fleet of 100,000 devices takes with real training: `shoal simulate` of a fleet file, set-up included.

Phones and boards come and go. Each has 20 digits of MNIST, of few classes; a cohort of 1,000 that is drawn from those
that are there trains the logistic model on them, five times over, for each of 50 versions. ``cpu_s`` is the processor
time of the command, with all its threads, from its start to its picture.

    python -m benchmarks.fleet_training --json
    python -m benchmarks.fleet_training --quick --json --picture fleet.png
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from testbed.results import finish, say

ROOT = Path(__file__).parent.parent
DEVICES, COHORT, VERSIONS = 100_000, 1_000, 50
#: The least devices that are rows, and a cohort of as large a share of them.
QUICK_DEVICES, QUICK_COHORT, QUICK_VERSIONS = 20_000, 200, 5
#: The work is asked to fit into this.
ASKED_S = 600.0
LONGEST_S = 3 * 3600.0

#: Of ten devices of the fleet. Where no profile is, a batch is slow because other programs run.
FLEET = """
[[group]]
name = "new phones"
count = {new}
profile = "wifi-phones"
presence = "stays.csv"
presence_period_s = {period_s}

[[group]]
name = "old phones"
count = {old}
seconds_per_gmac = 4
seconds_per_batch = 1.5
jitter = 0.2
up_mbps = 5
down_mbps = 20
latency_s = 0.03
memory_mb = 2048
train_watts = 3.0
idle_watts = 1.0
presence = "stays.csv"
presence_period_s = {period_s}

[[group]]
name = "boards"
count = {boards}
seconds_per_gmac = 0.5
seconds_per_batch = 0.5
up_mbps = 20
down_mbps = 50
latency_s = 0.02
memory_mb = 2048
train_watts = 6.0
idle_watts = 2.5

[manager]
up_mbps = 940
down_mbps = 940
latency_s = 0.01
"""
SHARES = {"new": 0.3, "old": 0.5, "boards": 0.2}

#: A thousand phones, each there for 5 to 25 minutes of each hour.
TRACED, HOUR_S, STAYS_S = 1_000, 3600, (300, 1500)


def write_fleet(folder: Path, devices: int) -> Path:
    chance, lines = np.random.default_rng(0), ["device,from_s,to_s"]
    for number in range(TRACED):
        stay_s = int(chance.integers(*STAYS_S))
        from_s = int(chance.integers(HOUR_S - stay_s))
        lines.append(f"phone {number},{from_s},{from_s + stay_s}")
    (folder / "stays.csv").write_text("\n".join(lines) + "\n")
    path = folder / "fleet.toml"
    counts = {name: round(share * devices) for name, share in SHARES.items()}
    path.write_text(FLEET.format(**counts, period_s=HOUR_S))
    return path


def command(fleet: Path, home: Path, picture: Path, *, cohort: int, versions: int, seed: int) -> list[str]:
    plan = {
        "data": "local",
        "pace": "sync",
        "cohort": cohort,
        "sampling": "uniform",
        "workers_min": cohort,
        "workers_max": 3 * cohort,
        "epoch_leases": cohort,
        "local_epochs": 5,
        "batch_size": 10,
        "lease_batches": 2,
        "learning_rate": 0.1,
        "momentum": 0,
        "evaluate_every_epochs": 5,
    }
    return [
        *(sys.executable, "-m", "shoal.cli.main", "simulate", "benchmarks/research_tasks.py:Logistic"),
        *("--fleet", str(fleet), "--partition", "drawn(20, 0.1)", "--epochs", str(versions), "--seed", str(seed)),
        *("--home", str(home), "--picture", str(picture), "--json"),
        *(word for key, value in plan.items() for word in ("--plan", f"{key}={value}")),
    ]


def measure(devices: int, *, cohort: int, versions: int, seed: int, picture: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shoal-fleet-") as name:
        folder = Path(name)
        fleet, drawn = write_fleet(folder, devices), picture or folder / "fleet.png"
        typed = command(fleet, folder / "home", drawn.resolve(), cohort=cohort, versions=versions, seed=seed)
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            typed, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S, check=True
        )
        spent, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began_s
        has_picture = drawn.exists()
    plan = json.loads(done.stdout)["plans"][0]
    cpu_s = spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return {
        "devices": devices,
        "versions": plan["rounds"],
        "cohort": cohort,
        "cpu_s": round(cpu_s, 1),
        "within_10_minutes": cpu_s <= ASKED_S,
        "seconds": round(seconds, 1),
        "peak_mb": round(spent.ru_maxrss / scale),
        "accuracy": plan["accuracy"],
        "took_part": plan["took_part"],
        "rows": plan["rows"],
        "simulated_s": round(plan["seconds"], 1),
        "bytes_up": plan["bytes_up"],
        "bytes_down": plan["bytes_down"],
        "state": plan["state"],
        "has_picture": has_picture,
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quick = f"{QUICK_DEVICES:,} devices, {QUICK_VERSIONS} versions of {QUICK_COHORT}"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="where to draw the job")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    chosen = parser.parse_args()
    devices, cohort, versions = (
        (QUICK_DEVICES, QUICK_COHORT, QUICK_VERSIONS) if chosen.quick else (DEVICES, COHORT, VERSIONS)
    )
    say(f"{devices:,} devices, {versions} versions of {cohort:,} leases")
    found = measure(devices, cohort=cohort, versions=versions, seed=chosen.seed, picture=chosen.picture)
    finish(found)
    return 0 if found["versions"] >= versions and found["has_picture"] else 1


if __name__ == "__main__":
    sys.exit(main())
