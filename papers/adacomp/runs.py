"""One run of the arena as a value, and the row it becomes. Which runs there are is in ``experiments``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from papers.adacomp import paper
from papers.adacomp.arena import Arrivals, Crowd, Examined, Method, Rule, Tally, played
from papers.adacomp.digits import Digits, dealt, digits
from papers.harness.rows import Row

if TYPE_CHECKING:
    from papers.adacomp.network import Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    #: As the paper has it: asgd, comp-asgd-1, adacomp-1 and so on; those of ours are called by their codec.
    method: str
    codec: str
    rule: Rule
    rate: float
    arrivals: Arrivals = "cycles"
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
            "seed": self.seed,
        }

    @property
    def title(self) -> str:
        crowd = f"{self.arrivals}, {self.workers} workers, {self.images:,} images"
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

    def measured(self, run: Run, *, say: Callable[[str], None]) -> Row:
        """Play it and tell its row."""
        from papers.adacomp.network import LAYOUT, first_model

        began_s, cpu_s = time.monotonic(), time.process_time()

        def told(found: Examined) -> None:
            rate = found.updates / (time.monotonic() - began_s)
            say(f"   {found.updates:>7,} updates  {100 * found.accuracy:5.2f} %  {found.update_bytes / 1e6:9,.1f} MB"
                f"  {rate:4.0f}/s")  # fmt: skip

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
        )
        row = row_of(run, tally)
        row |= {
            "seconds": time.monotonic() - began_s,
            "cpu_ms": 1e3 * (time.process_time() - cpu_s) / max(1, tally.updates),
        }
        return row


def crowd_of(run: Run) -> Crowd:
    return Crowd(
        workers=run.workers,
        batch=paper.BATCH,
        arrivals=run.arrivals,
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
