"""Processor time per client of a simulated study: Shoal, a plain PyTorch loop, Flower and pfl-research, one run.

    python -m benchmarks.research [--quick] --json
    python -m benchmarks.research --environments DIR     where the two others are installed, by pip, at the first run

MNIST is divided among 1,000 clients by Dirichlet(0.1). For each version 50 of them take 5 steps of 32 examples, in one
thread. A figure is what a long run takes more than a short one: start-up, set-up and evaluation do not count. All
processes of an engine count, in a control group of their own. ``--quick`` has the logistic model and one seed, and
leaves out Flower, which starts slowly, and pfl-research where it is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from benchmarks.peers.install import share_torch
from benchmarks.research_shoal import divided
from benchmarks.research_work import CLIENTS, COHORT, USAGE_VARIABLE
from testbed.results import finish, say

HERE = Path(__file__).parent
ROOT = HERE.parent
MODELS = ("logistic", "mlp")
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
LONGEST_S = 900.0
#: What pip installs for each of the others. pfl asks for older releases of packages that it does not need here.
PACKAGES = {
    "flower": (("flwr[simulation]",),),
    "pfl": (
        ("--no-deps", "pfl"),
        ("dp-accounting<0.6", "prv-accountant", "multiprocess", "scipy", "packaging"),
    ),
}
#: Versions of the short and of the long run.
VERSIONS = {"plain": (20, 60), "stacked": (20, 60), "one_by_one": (20, 60), "pfl": (20, 60), "flower": (2, 8)}
QUICK_VERSIONS = {"plain": (10, 30), "stacked": (10, 30), "one_by_one": (10, 20), "pfl": (10, 30)}
SHOAL = ("stacked", "one_by_one")


class Unmeasured(Exception):
    """An engine gave no figure. The text says why."""


def python_of(environments: Path, engine: str) -> Path:
    return environments / engine / "bin" / "python" if engine in PACKAGES else Path(sys.executable)


def install(environments: Path) -> None:
    """Make an environment for each engine that has none."""
    for engine, steps in PACKAGES.items():
        python = python_of(environments, engine)
        done = environments / engine / "installed"
        if done.exists():
            continue
        say(f"{engine}: installing into {environments / engine}")
        shutil.rmtree(environments / engine, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(environments / engine)], check=True, timeout=LONGEST_S)
        for packages in steps:
            command = [str(python), "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(command, check=True, timeout=LONGEST_S, stdout=sys.stderr)
        if not share_torch(python):
            command = [str(python), "-m", "pip", "install", "--quiet", "torch==2.13.0", "numpy"]
            subprocess.run(command, check=True, timeout=LONGEST_S, stdout=sys.stderr)
        done.touch()


def turn(engine: str, folder: Path, environments: Path, model: str, seed: int, versions: tuple[int, int]) -> Any:
    """Run an engine once, in a control group of its own. Raises Unmeasured if it gives no figure."""
    python = python_of(environments, engine)
    if not python.exists():
        raise Unmeasured("not installed: run without --quick")
    numbers = (str(seed), *map(str, versions))
    if engine in SHOAL:
        command = ["-m", "benchmarks.research_shoal", engine, model, *numbers]
    elif engine == "plain":
        command = ["-m", "benchmarks.research_plain", str(folder), model, *numbers]
    else:
        command = [str(HERE / f"research_{engine}.py"), str(folder), model, *numbers]
    group = ACCOUNTS / f"shoal-research-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Unmeasured(f"no control group for processor time: {error}") from None
    environment = {**os.environ, USAGE_VARIABLE: str(group / "cpuacct.usage"), "OMP_NUM_THREADS": "1"}
    # The shell enters the group before the engine begins, so that every process is in it.
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", enter, "enter", str(python), *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unmeasured(f"no figure within {LONGEST_S:.0f} s") from None
    finally:
        _end(group)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Unmeasured(f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1][:300]}")


def _end(group: Path) -> None:
    """End what an engine left behind in its group, and remove that."""
    for _ in range(50):
        left = (group / "cgroup.procs").read_text().split()
        if not left:
            break
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.1)
    group.rmdir()


def write_work(folder: Path, seeds: int) -> None:
    """Write the digits, and the rows of every client for each seed."""
    (x, y), (test_x, test_y) = shoal.data.mnist("train"), shoal.data.mnist("test")
    x, test_x = (np.asarray(each).reshape(-1, 784) for each in (x, test_x))
    y, test_y = (np.asarray(each).astype(np.int64) for each in (y, test_y))
    np.savez(folder / "digits.npz", x=x, y=y, test_x=test_x, test_y=test_y)
    for seed in range(seeds):
        np.save(folder / f"rows-{seed}.npy", divided(y, seed))


def of_model(model: str, folder: Path, environments: Path, *, seeds: int, quick: bool) -> dict[str, Any]:
    """Measure every engine with one model."""
    cpu_ms: dict[str, float | None] = {}
    accuracy: dict[str, list[float]] = {}
    hashes: dict[str, str] = {}
    why: dict[str, str] = {}
    for engine, versions in (QUICK_VERSIONS if quick else VERSIONS).items():
        name = {"stacked": "shoal", "one_by_one": "shoal_one_by_one"}.get(engine, engine)
        try:
            # Flower takes minutes to start: one seed.
            told = [
                turn(engine, folder, environments, model, seed, versions)
                for seed in range(1 if engine == "flower" else seeds)
            ]
        except Unmeasured as error:
            cpu_ms[name], why[name] = None, str(error)
            say(f"{model}, {name}: {error}")
            continue
        cpu_ms[name] = round(statistics.median(each["cpu_ms"] for each in told), 2)
        accuracy[name] = [round(each["accuracy"], 4) for each in told]
        say(f"{model}, {name}: {cpu_ms[name]} ms per client, accuracy {accuracy[name]}")
        if engine in SHOAL:
            hashes[engine] = " ".join(each["hash"] for each in told)
    return {"cpu_ms": cpu_ms, "accuracy": accuracy, "hashes": hashes, "why_not": why}


def is_same_accuracy(accuracy: dict[str, list[float]]) -> bool | None:
    """Whether Shoal's mean is within the spread of the plain loop's seeds and its own; None with one seed."""
    plain, here = accuracy.get("plain", []), accuracy.get("shoal", [])
    if min(len(plain), len(here)) < 2:
        return None
    spread = max(max(plain) - min(plain), max(here) - min(here))
    return abs(statistics.mean(plain) - statistics.mean(here)) <= spread


def ratio(cpu_ms: dict[str, float | None], other: str) -> float | None:
    here, there = cpu_ms.get("shoal"), cpu_ms.get(other)
    return round(here / there, 2) if here and there else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.research", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object, as always")
    parser.add_argument("--quick", action="store_true", help="the logistic model with one seed, within a minute")
    usual = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "shoal-research"
    parser.add_argument("--environments", type=Path, default=usual, help="where the other engines are installed")
    chosen = parser.parse_args()
    seeds, names = (1, MODELS[:1]) if chosen.quick else (3, MODELS)
    load = os.getloadavg()[0]
    if not chosen.quick:
        install(chosen.environments)
    with tempfile.TemporaryDirectory(prefix="shoal-research-") as folder:
        write_work(Path(folder), seeds)
        found = {
            name: of_model(name, Path(folder), chosen.environments, seeds=seeds, quick=chosen.quick) for name in names
        }
    cpu_ms = {name: each["cpu_ms"] for name, each in found.items()}
    same_accuracy = [is_same_accuracy(each["accuracy"]) for each in found.values()]
    same_bits = all(len(set(each["hashes"].values())) == 1 for each in found.values())
    finish(
        {
            "cpu_ms": cpu_ms,
            "logistic_to_pfl": ratio(cpu_ms["logistic"], "pfl"),
            "mlp_to_pfl": ratio(cpu_ms.get("mlp", {}), "pfl"),
            "mlp_to_flower": ratio(cpu_ms.get("mlp", {}), "flower"),
            "logistic_to_plain": ratio(cpu_ms["logistic"], "plain"),
            "mlp_to_plain": ratio(cpu_ms.get("mlp", {}), "plain"),
            "same_bits": same_bits,
            "same_accuracy": None if None in same_accuracy else all(same_accuracy),
            "accuracy": {name: each["accuracy"] for name, each in found.items()},
            "not_measured": {name: each["why_not"] for name, each in found.items() if each["why_not"]},
            "clients": CLIENTS,
            "cohort": COHORT,
            "load": round(load, 2),
        }
    )
    return 0 if same_bits else 1


if __name__ == "__main__":
    sys.exit(main())
