"""Condense measurements of real devices and links into src/shoal/sim/profiles.json. Nothing in it is chance.

python tools/build_profiles.py [--data DIR] [--out FILE]

docs/profiles.md says what each figure means, where it comes from, and which are assumed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import re
import statistics
import tarfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "shoal" / "sim" / "profiles.json"

TRACES_KEPT = 24
TRACE_STEP_S = 10
TRACE_STEPS = 32
PHONES_KEPT = 48

#: Below, what a Pi's time goes to is memory traffic, which multiply-adds do not tell.
COMPUTE_BOUND_GMACS = 1.0

#: LEAF's FEMNIST CNN: 28 x 28 in, two 5 x 5 convolutions with pools, dense 2048, 62 classes; FLASH trains it by tens.
FEMNIST_MACS = 28 * 28 * 32 * 25 + 14 * 14 * 64 * 25 * 32 + 7 * 7 * 64 * 2048 + 2048 * 62
FEMNIST_BATCH = 10
#: Assumed: how much of a phone's step does not grow with the model.
PHONE_FIXED_SHARE = 0.05
#: Assumed: what the system leaves of a phone's memory to a trainer.
PHONE_MEMORY_SHARE = 0.5
#: Assumed: four cores of 3 GHz with AVX2 against four of 1.5 GHz with NEON.
LAPTOP_TIMES_FASTER = 8.0

HALF_HOUR_S = 1800
#: Five whole days, so that day and night stay in step when the matrix repeats.
HALF_HOURS = 240
HALF_HOURS_A_DAY = 48

SOURCES = {
    "phones, links, presence": {
        "from": "https://github.com/PKU-Chengxu/FLASH",
        "licence": "BSD-2-Clause",
        "files": "device_util, speed_distri.json, availability matrix",
    },
    "pi4": {
        "from": "https://github.com/jafermarq/federated-embedded-vision",
        "licence": "Apache-2.0",
        "files": "Raspberry Pi 4 training benchmark",
    },
    "traces": {
        "from": "https://github.com/confiwent/Real-world-bandwidth-traces",
        "licence": "MIT",
        "files": "cooked_3gp, fcc_ori/cooked_traces/trace_*",
    },
}

#: Assumed, not measured by us: docs/profiles.md says on what grounds.
PI4_ASSUMED = {
    "seconds_per_batch": 0.003,
    "jitter": 0.05,
    "memory_mb": 3584,
    "battery_wh": 0.0,
    "train_watts": 6.4,
    "idle_watts": 2.7,
    "heat": {"rise_c_per_w": 9.0, "time_constant_s": 120.0, "limit_c": 80.0, "ambient_c": 25.0, "slowdown": 1.5},
}
LAPTOP_ASSUMED = {
    "speed_spread": 0.35,
    "seconds_per_batch": 0.0005,
    "jitter": 0.1,
    "memory_mb": 4096,
    "battery_wh": 0.0,
    "train_watts": 25.0,
    "idle_watts": 6.0,
    "heat": None,
}
PHONE_ASSUMED = {
    "battery_wh": 12.0,
    "least_charge": 0.5,
    "train_watts": 3.5,
    "idle_watts": 0.1,
    "heat": {"rise_c_per_w": 6.0, "time_constant_s": 400.0, "limit_c": 42.0, "ambient_c": 25.0, "slowdown": 1.5},
}
EVEN = {
    "seconds_per_gmac": 0.01,
    "seconds_per_batch": 0.001,
    "jitter": 0.0,
    "memory_mb": 8192,
    "battery_wh": 0.0,
    "train_watts": 10.0,
    "idle_watts": 2.0,
    "heat": None,
}
#: Rates of Raspberry Pis and of the manager, delays of everyone; traces and links are measured.
LINES_ASSUMED = {
    "lan": {"up_kbit": 940_000, "down_kbit": 940_000, "latency_s": 0.0002, "jitter_s": 0.0},
    "pi4_wifi": {"up_kbit": 100_000, "down_kbit": 100_000, "latency_s": 0.002, "jitter_s": 0.003},
    "internet": {"up_kbit": 940_000, "down_kbit": 940_000, "latency_s": 0.01, "jitter_s": 0.0},
    "home_wifi": {"latency_s": 0.015, "jitter_s": 0.01},
    "broadband": {"down_times_up": 10.0, "latency_s": 0.012, "jitter_s": 0.005},
    "3g": {"up_times_down": 0.4, "latency_s": 0.06, "jitter_s": 0.05},
    "devices_per_access_point": 12,
}

_T = TypeVar("_T")


def evenly(ranked: Sequence[_T], count: int) -> list[_T]:
    """So many of a ranked list, in the middle of equal shares of it."""
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


def members(archive: Path, pattern: str) -> dict[str, bytes]:
    """The files of an archive whose whole name fits, by name."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and re.fullmatch(pattern, member.name):
                stream = tar.extractfile(member)
                assert stream is not None
                found[member.name] = stream.read()
    return dict(sorted(found.items()))


# Traces ----------------------------------------------------------------------------------------------


def resample(text: bytes) -> list[int]:
    """Rows of (seconds, Mbit/s), each the rate since the row before, as means of equal steps in whole kbit/s."""
    rows = np.loadtxt(io.BytesIO(text), ndmin=2)
    times_s, rates = rows[:, 0] - rows[0, 0], rows[:, 1]
    passed = np.concatenate([[0.0], np.cumsum(rates[1:] * np.diff(times_s))])
    steps = min(TRACE_STEPS, int(times_s[-1] // TRACE_STEP_S))
    edges_s = np.arange(steps + 1) * float(TRACE_STEP_S)
    means = np.diff(np.interp(edges_s, times_s, passed)) / TRACE_STEP_S
    return [round(float(mean) * 1000) for mean in means]


def traces(archive: Path, pattern: str, *, steps_min: int) -> list[list[int]]:
    """Traces of one family, slow to fast, without those that are too short or silent."""
    family = [resample(text) for text in members(archive, pattern).values()]
    usable = [trace for trace in family if len(trace) >= steps_min and any(trace)]
    return evenly(sorted(usable, key=lambda trace: (sum(trace) / len(trace), trace)), TRACES_KEPT)


# Devices ---------------------------------------------------------------------------------------------


def pi4_seconds_per_gmac(table: Path) -> float:
    """The median over the models that are bound by arithmetic."""
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["t_train_batch"]]
    return statistics.median(
        float(row["t_train_batch"]) / (float(row["gmacs"]) * int(row["batch"]))
        for row in rows
        if float(row["gmacs"]) >= COMPUTE_BOUND_GMACS
    )


def between(score: float, knots: Sequence[tuple[float, float]]) -> float:
    """Straight lines on logarithmic scales; flat beyond the ends: nothing was measured there."""
    logs = [(math.log(x), math.log(y)) for x, y in knots]
    x = min(max(math.log(score), logs[0][0]), logs[-1][0])
    for (x0, y0), (x1, y1) in pairwise(logs):
        if x <= x1:
            return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return math.exp(logs[-1][1])


def phones(archive: Path, times: Path) -> list[dict[str, Any]]:
    """Phones of the benchmark list, slow to fast, with the time of a FEMNIST step their score tells."""
    found = members(archive, "utils/device_util/(raw_ai_benchmark_list|benchmark2score|supported_devices).json")
    lists = {Path(name).stem: json.loads(text) for name, text in found.items()}
    measured = [lists["benchmark2score"][name] for name in lists["supported_devices"]]
    femnist = json.loads(times.read_text())["femnist_cnn"]
    step_s = [(score, ms / 1000) for score, ms in zip(measured, femnist["mean"], strict=True)]
    spread = [(s, std / ms) for s, ms, std in zip(measured, femnist["mean"], femnist["std"], strict=True)]
    listed = [
        (int(phone["AI_Score"].split()[0]), phone["Model"].strip(), float(phone["RAM"].removesuffix("GB")))
        for phone in lists["raw_ai_benchmark_list"]
    ]
    gmacs = FEMNIST_MACS * FEMNIST_BATCH / 1e9
    return [
        {
            "kind": kind,
            "seconds_per_gmac": round((1 - PHONE_FIXED_SHARE) * between(score, step_s) / gmacs, 4),
            "seconds_per_batch": round(PHONE_FIXED_SHARE * between(score, step_s), 5),
            "jitter": round(between(score, spread), 4),
            "memory_mb": int(ram_gb * 1024 * PHONE_MEMORY_SHARE),
        }
        for score, kind, ram_gb in evenly(sorted(listed), PHONES_KEPT)
    ]


def links(archive: Path) -> list[list[int]]:
    """Mean up and down rates of phones in kbit/s. FLASH's own code reads the figures as kilobytes a second."""
    (text,) = members(archive, "speed_distri.json").values()
    return sorted([round(8 * link["up_u"]), round(8 * link["down_u"])] for link in json.loads(text).values())


def presence(matrix: Path) -> list[list[int]]:
    """Run lengths in half hours of phones, seldom to often there; the first run is absence, and may be 0 long."""
    states = np.load(matrix)[:HALF_HOURS].T
    # A phone was not watched all the time: what it did at that hour on the next day that is known stands in.
    for _ in range(HALF_HOURS // HALF_HOURS_A_DAY):
        states = np.where(np.isnan(states), np.roll(states, -HALF_HOURS_A_DAY, axis=1), states)
    rows = [[int(state == 1) for state in row] for row in states]
    return [runs(row) for row in evenly(sorted(rows, key=lambda row: (sum(row), row)), PHONES_KEPT)]


def runs(states: Sequence[int]) -> list[int]:
    """[1, 1, 0] -> [0, 2, 1]."""
    lengths, state = [0], 0
    for following in states:
        if following != state:
            lengths.append(0)
            state = following
        lengths[-1] += 1
    return lengths


# The file --------------------------------------------------------------------------------------------


def build(data: Path) -> str:
    """The whole file, as text."""
    devices, bandwidth = data / "devices", data / "bandwidth" / "traces.tar.xz"
    flash = devices / "flash_device_util.tar.xz"
    pi4 = round(pi4_seconds_per_gmac(devices / "rpi4_training_bench.csv"), 4)
    return write(
        {
            "about": "Made by tools/build_profiles.py; docs/profiles.md explains it. Do not edit.",
            "sources": SOURCES,
            "pi4": {"seconds_per_gmac": pi4, **PI4_ASSUMED},
            "laptop": {"seconds_per_gmac": round(pi4 / LAPTOP_TIMES_FASTER, 5), **LAPTOP_ASSUMED},
            "even": EVEN,
            "phone": PHONE_ASSUMED,
            "phones": phones(flash, devices / "flash_train_time_per_batch_ms.json"),
            "lines": LINES_ASSUMED,
            "links_up_down_kbit": links(flash),
            "trace_step_s": TRACE_STEP_S,
            "traces_fcc_kbit": traces(bandwidth, r"fcc_ori/cooked_traces/trace_.*", steps_min=TRACE_STEPS),
            # The fast ones of this family are the short ones: to ask for a length would keep the slow ones alone.
            "traces_3g_kbit": traces(bandwidth, r"cooked_3gp/.*", steps_min=1),
            "presence_step_s": HALF_HOUR_S,
            "presence": presence(devices / "flash_e5_availability_matrix.npy"),
        }
    )


def write(figures: dict[str, Any]) -> str:
    """JSON with one line a row, so that a change of the data shows as a change of lines."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, list):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f" {json.dumps(name)}: [\n  {rows}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Condense measurements into the simulator's profiles.")
    parser.add_argument("--data", type=Path, default=os.environ.get("SHOAL_DATA"), help="default: SHOAL_DATA")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    if chosen.data is None:
        parser.error("name the directory with the data: --data DIR, or SHOAL_DATA")
    text = build(chosen.data)
    chosen.out.write_text(text)
    print(f"{chosen.out}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
