"""The runs by experiment, in the order of what they are needed for. Values only."""

from __future__ import annotations

from dataclasses import replace

from papers.adacomp import paper
from papers.adacomp.arrivals import Start
from papers.adacomp.runs import Run

#: The paper's five, at its rate and with its rules.
ASGD = Run(method="asgd", codec="dense", rule="update", rate=paper.RATE, updates_max=60_000)
ADACOMP_1 = Run(method="adacomp-1", codec="top1%", rule="parameter", rate=paper.RATE)
ADACOMP_10 = Run(method="adacomp-10", codec="top10%", rule="parameter", rate=paper.RATE)
COMP_1 = Run(method="comp-asgd-1", codec="top1%", rule="update", rate=paper.RATE, updates_max=12_000)
COMP_10 = Run(method="comp-asgd-10", codec="top10%", rule="update", rate=paper.RATE, updates_max=12_000)

#: The same two that it is compared with, without a rule: then a rate is what it says.
BARE = Run(method="asgd", codec="dense", rule="none", rate=0.005, updates_max=30_000)
BARE_1 = Run(method="comp-asgd-1", codec="top1%", rule="none", rate=0.01, updates_max=30_000)

#: With error feedback, which the paper does not have, and values of four bits.
FEEDBACK = Run(method="feedback-1", codec="top1%+ef+4bit", rule="none", rate=0.0025, updates_max=15_000)

#: Does not stop at the target: what is looked at is where it gets.
ON = replace(ADACOMP_1, wanted=2.0, updates_max=25_000)

_STARTS: tuple[Start, ...] = ("in turn", "together")
_FIVE = (ADACOMP_1, ASGD, ADACOMP_10, COMP_1, COMP_10)


def _together(*runs: Run) -> tuple[Run, ...]:
    """The same with all workers at version 0 at first. What is compared with each other must begin alike."""
    return tuple(replace(run, start="together") for run in runs)


EXPERIMENTS: dict[str, tuple[Run, ...]] = {
    "headline": (*_FIVE, *_together(*_FIVE)),
    # How training begins is over long before the target.
    "start": tuple(
        replace(run, start=start, wanted=2.0, updates_max=1_500, every=250)
        for run in (ADACOMP_10, ADACOMP_1)
        for start in _STARTS
    ),
    "memoryless": _together(*(replace(run, arrivals="memoryless") for run in (ADACOMP_1, ASGD))),
    # The paper's rate of each is in the headline.
    "tuned": _together(
        *(replace(BARE, rate=rate) for rate in (0.0025, 0.005, 0.01)),
        *(replace(BARE_1, rate=rate) for rate in (0.005, 0.01)),
        replace(ASGD, rate=0.3),
        replace(COMP_1, rate=1.0),
        *(replace(ADACOMP_1, rate=rate) for rate in (0.05, 0.2)),
        replace(BARE, arrivals="memoryless", rate=0.005),
        replace(BARE_1, arrivals="memoryless", rate=0.01),
    ),
    "feedback": _together(FEEDBACK),
    # As many crash as in Table II within a tenth of the updates: see README.md.
    "crashes": _together(
        ON,
        replace(ON, crash_chance=paper.CRASH_CHANCE),
        replace(ON, images=12_000),
        replace(ON, images=12_000, crash_chance=paper.CRASH_CHANCE),
        replace(ON, images=6_000, workers=100),
    ),
    "classes": _together(
        *(replace(ON, images=images, classes=True, updates_max=12_000) for images in (60_000, 12_000))
    ),
}

#: As long as the paper's: 18 to 33 minutes of one idle core each, by the processor time per update of shorter runs.
FINAL = tuple(
    replace(run, wanted=2.0, updates_max=paper.UPDATES, every=2_500)
    for run in (ADACOMP_1, ADACOMP_10, ASGD, COMP_1, COMP_10)
)

#: The paper gives the mean of three.
FINAL_SEEDS = 3

#: Small enough for a minute: fewer workers, fewer updates, and a target that can be reached.
QUICK = tuple(
    replace(run, workers=20, updates_max=updates, every=100, wanted=2.0)
    for run, updates in ((ADACOMP_1, 600), (ASGD, 600), (replace(BARE, rate=0.02), 600), (COMP_1, 300))
)

#: Everything whose rows are kept.
MEASURED = (*EXPERIMENTS, "final")
