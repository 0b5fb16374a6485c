"""Does ``auto`` pick right where it is real? Four corners of what a cluster can be, on shaped links.

Few devices and many, slow links and fast ones: at each corner a star, a tree and a shard are measured, then ``auto`` is
let choose, and change its mind, for as many versions. It is right if what it ends in is within a tenth of the fastest
that was measured. One machine stands for all devices: where links are fast, its processor is what a shape is short of,
which no link told the planner; it finds out by rounds that take longer than predicted, and goes back.

    python -m benchmarks.corners [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest import mock

from benchmarks.common import PERNET
from shoal.runtime.operator import Operator
from shoal.trainer.package import ReadyTask
from testbed.cluster import MANAGER, Cluster
from testbed.devices import Board, boards
from testbed.echo_job import echo_job
from testbed.namespaces import why_no_namespaces
from testbed.noted import NOTES_VARIABLE, Note, read_notes
from testbed.results import finish, say

SHAPES = ("star", "tree", "shard")
CORNERS = ((3, 50.0), (3, 1000.0), (10, 50.0), (10, 1000.0))
QUICK_CORNERS = ((3, 50.0), (5, 50.0))
BATCH_S = 0.5
TIMED = 5
#: Versions that ``auto`` has to measure, choose, be wrong and choose again.
CHOOSING = 24
QUICK_CHOOSING = 10
LONGEST_S = 300.0
RIGHT = 1.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    workers: int
    mbps: float
    values: int
    timed: int
    choosing: int


async def corner(setting: Setting) -> dict[str, object]:
    """What each shape takes there, and what ``auto`` ends in."""
    wanted = boards(setting.workers, up_mbps=setting.mbps, down_mbps=setting.mbps, pace_s=BATCH_S)
    with tempfile.TemporaryDirectory(prefix="shoal-corners-") as folder:
        home, notes = Path(folder) / "home", Path(folder) / "notes"
        cluster = Cluster(
            home,
            wanted,
            manager=Board(name=MANAGER, up_mbps=setting.mbps, down_mbps=setting.mbps),
            child_module="shoal.trainer.echo",
            manager_module="testbed.noted",
            cache=Path(folder) / "cache",
        )
        with mock.patch.dict(os.environ, {NOTES_VARIABLE: str(notes)}):
            async with cluster, Operator.open(home) as operator:
                await cluster.connected()
                ready = echo_job(Path(folder), values=setting.values, batches=setting.workers * 400)
                took_s = {}
                for shape in SHAPES:
                    made = await _run(operator, ready, setting, shape, notes, versions=setting.timed + 2)
                    took_s[shape] = _round_s(made, setting.timed)
                made = await _run(operator, ready, setting, "auto", notes, versions=setting.choosing)
    ended = made[-1].shape.split()[0]
    best = min(took_s, key=lambda shape: took_s[shape])
    ratio = took_s[ended] / took_s[best]
    times = ", ".join(f"{shape} {took_s[shape]:.2f} s" for shape in SHAPES)
    went = " -> ".join(dict.fromkeys(note.shape.split()[0] for note in made))
    say(f"{setting.workers} workers at {setting.mbps:g} Mb/s: {times}; auto: {went}, {ratio:.2f} of the best")
    return {
        "workers": setting.workers,
        "mbps": setting.mbps,
        **{f"{shape}_s": round(seconds, 3) for shape, seconds in took_s.items()},
        "best": best,
        "auto": ended,
        "ratio": round(ratio, 3),
        "right": ratio <= RIGHT,
    }


async def _run(
    operator: Operator, ready: ReadyTask, setting: Setting, shape: str, notes: Path, *, versions: int
) -> list[Note]:
    """A job in this shape until it made so many versions in it; ``auto``: in any."""
    plan = {
        "topology": shape,
        "workers_min": setting.workers,
        "workers_max": setting.workers,
        "until": {"epochs": 100},
        "evaluate_every_epochs": 1000,
        "lease_s": 120.0,
    }
    job = await operator.submit(ready, plan=plan)
    deadline_s = time.monotonic() + LONGEST_S
    while True:
        made = [note for note in read_notes(notes, job) if shape in ("auto", note.shape.split()[0])]
        if len(made) >= versions or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.2)
    if len(made) < 3:
        raise SystemExit(f"{shape} with {setting.workers} workers: {len(made)} versions in {LONGEST_S:g} s")
    await operator.stop(job)
    while (await operator.status(job)).jobs[0].state in ("queued", "running", "stopping"):
        await asyncio.sleep(0.2)
    return made


def _round_s(made: list[Note], timed: int) -> float:
    return median(after.at_s - before.at_s for before, after in pairwise(made[-(timed + 1) :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two corners, a smaller model")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object, as always here")
    given = parser.parse_args()
    if why_not := why_no_namespaces():
        raise SystemExit(f"no testbed here: {why_not}")
    settings = [
        Setting(
            workers=workers,
            mbps=mbps,
            values=PERNET // 8 if given.quick else PERNET,
            timed=3 if given.quick else TIMED,
            choosing=QUICK_CHOOSING if given.quick else CHOOSING,
        )
        for workers, mbps in (QUICK_CORNERS if given.quick else CORNERS)
    ]
    rows = [asyncio.run(corner(setting)) for setting in settings]
    finish({"corners": rows, "right": sum(bool(row["right"]) for row in rows), "of": len(rows)})


if __name__ == "__main__":
    main()
