"""One run of the arena as a value, and the row it becomes. Which runs there are is in ``experiments``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.adacomp import paper, unfinished
from papers.adacomp.arena import Examined, Method, Rule, State, Tally, played
from papers.adacomp.arrivals import Arrivals, Crowd, Start
from papers.adacomp.digits import Digits, dealt, digits
from papers.harness.rows import Row

if TYPE_CHECKING:
    from papers.adacomp.network import Network


#: A long run is saved after every so many looks: about a minute of one core.
_SAVED_AFTER_LOOKS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    #: As the paper has it: asgd, comp-asgd-1, adacomp-1 and so on; those of ours are called by their codec.
    method: str
    codec: str
    rule: Rule
    rate: float
    arrivals: Arrivals = "cycles"
    start: Start = "in turn"
    workers: int = paper.WORKERS
    #: Training images in use: 60,000 are all.
    images: int = 60_000
    classes: bool = False
    crash_chance: float = 0.0
    seed: int = 0
    updates_max: int = 40_000
    #: Examined every so many updates.
    every: int = 1_000
    #: Stops at this accuracy; above 1 never.
    wanted: float = paper.TARGET

    @property
    def key(self) -> dict[str, Any]:
        """What a row has in common with no other."""
        return {
            "method": self.method,
            "codec": self.codec,
            "rule": self.rule,
            "rate": self.rate,
            "arrivals": self.arrivals,
            "workers": self.workers,
            "images": self.images,
            "classes": self.classes,
            "crash_chance": self.crash_chance,
            "start": self.start,
            "seed": self.seed,
        }

    @property
    def title(self) -> str:
        crowd = f"{self.arrivals}, begun {self.start}, {self.workers} workers, {self.images:,} images"
        more = (", classes" if self.classes else "") + (f", crashes {self.crash_chance:g}" if self.crash_chance else "")
        return f"{self.method} ({self.codec}, rate {self.rate:g}, rule {self.rule}), {crowd}{more}, seed {self.seed}"


class Course:
    """The data and the network, loaded once for all runs."""

    def __init__(self, *, test_images: int = 10_000) -> None:
        # Here, so that tables and plots are made without torch.
        import torch

        from papers.adacomp.network import Network

        # One run, one core: more threads make a gradient of ten images slower.
        torch.set_num_threads(1)
        train, test = digits("train"), digits("test")
        self._examples = len(train.labels)
        few = Digits(images=test.images[:test_images], labels=test.labels[:test_images])
        self._network: Network = Network(train, few)

    def measured(self, run: Run, *, say: Callable[[str], None], file: Path | None = None) -> Row:
        """Play it and return its row. With a file it continues from there, and the file goes when it is done."""
        from papers.adacomp.network import LAYOUT, first_model

        began_s, cpu_s = time.monotonic(), time.process_time()
        saved = unfinished.read(file) if file else None
        spent = saved["spent"].tolist() if saved else [0.0, 0.0]
        before = int(saved["version"]) if saved else 0
        if saved:
            say(f"   continued after {before:,} updates")

        def told(found: Examined) -> None:
            rate = (found.updates - before) / (time.monotonic() - began_s)
            left = f", {found.updates / run.updates_max:.0%} of {run.updates_max:,}" if file else ""
            say(f"   {found.updates:>7,} updates  {100 * found.accuracy:5.2f} %  {found.update_bytes / 1e6:9,.1f} MB"
                f"  {rate:4.0f}/s{left}")  # fmt: skip

        def so_far() -> list[float]:
            return [spent[0] + time.monotonic() - began_s, spent[1] + time.process_time() - cpu_s]

        def save(state: State) -> None:
            if file and int(state["version"]) % (_SAVED_AFTER_LOOKS * run.every) == 0:
                unfinished.write(file, state | {"spent": np.array(so_far())})

        tally = played(
            self._network,
            first_model(run.seed),
            LAYOUT,
            dealt(self._examples, run.workers, used=run.images, seed=run.seed),
            method=Method(codec=run.codec, rule=run.rule, rate=run.rate),
            crowd=crowd_of(run),
            every=run.every,
            updates_max=run.updates_max,
            wanted=run.wanted,
            told=told,
            saved=saved,
            save=save if file else None,
        )
        seconds, processor_s = so_far()
        return row_of(run, tally) | {"seconds": seconds, "cpu_ms": 1e3 * processor_s / max(1, tally.updates)}


def crowd_of(run: Run) -> Crowd:
    return Crowd(
        workers=run.workers,
        batch=paper.BATCH,
        arrivals=run.arrivals,
        start=run.start,
        classes=paper.CLASSES if run.classes else ((1.0, 1.0),),
        crash_chance=run.crash_chance,
        seed=run.seed,
    )


def row_of(run: Run, tally: Tally) -> Row:
    """What it took to the target, if it got there, and how far it got in all."""
    there = next((found for found in tally.examined if found.accuracy >= paper.TARGET), None)
    return {
        **run.key,
        "updates_to_target": there.updates if there else None,
        "entries": there.entries if there else None,
        "update_bytes": there.update_bytes if there else None,
        "frame_bytes": there.frame_bytes if there else None,
        "pickled_bytes": pickled_bytes(run.codec, there.entries) if there else None,
        "updates": tally.updates,
        "every": run.every,
        "best": max((found.accuracy for found in tally.examined), default=0.0),
        "trouble": tally.trouble,
        "crashed": tally.crashed,
        "staleness": tally.staleness / max(1, tally.updates),
        "inverse_staleness": tally.inverse_staleness / max(1, tally.updates),
        "place_staleness": tally.place_staleness / max(1, tally.updates),
        "curve": [[found.updates, round(found.accuracy, 4), found.update_bytes] for found in tally.examined],
    }


def pickled_bytes(codec: str, entries: int) -> int:
    """In the paper's unit: pickled Python numbers, with a place beside each value where not all are sent."""
    place = paper.PLACE_PICKLED_BYTES if codec.startswith("top") else 0
    return entries * (paper.VALUE_PICKLED_BYTES + place)
