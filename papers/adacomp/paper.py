"""What AdaComp reports, with where, and what of its set-up is not in its text. Values only."""

from __future__ import annotations

from collections.abc import Mapping

#: §V-B and §V-C: workers, images of one batch, and updates of one run.
WORKERS = 200
BATCH = 10
UPDATES = 250_000

#: §V-B: two convolutions and two full layers.
PARAMETERS = 211_690

#: Not in the text; its published code has it. The two it is compared with divide it by the staleness of the update.
RATE = 0.1

#: §V-C: the level at which traffic is compared, and the traffic of AdaComp with c = 0.01 there.
TARGET = 0.97
ADACOMP_BYTES = 1.33e9
LESS_THAN_ASGD = 191

#: §V-C: after all updates, mean of the best of three runs. (method, percentage sent) -> accuracy.
FINAL: Mapping[str, float] = {
    "asgd": 0.9785,
    "comp-asgd-10": 0.9607,
    "comp-asgd-1": 0.9511,
    "adacomp-10": 0.987,
    "adacomp-1": 0.9859,
}

#: §V-C: what ASGD sends in all its updates.
ASGD_BYTES = 460e9

#: §V-D: the chance that a worker crashes after a push, and how many are to be left at the end.
CRASH_CHANCE = 0.004
LEFT = 100

#: Table II: accuracies of AdaComp with c = 0.01 on another network. (images, crashes, workers) -> accuracy.
CRASHES: Mapping[tuple[int, bool, int], float] = {
    (60_000, False, 200): 0.9744,
    (60_000, True, 200): 0.9717,
    (12_000, False, 200): 0.9547,
    (12_000, True, 200): 0.9524,
    (6_000, False, 100): 0.9435,
}

#: §V-E: shares of fast, medium and slow workers, and how often each sends beside the slowest.
CLASSES: tuple[tuple[float, float], ...] = ((0.3, 100.0), (0.4, 10.0), (0.3, 1.0))

#: §V-E, Figure 4: (images, classes) -> accuracy after all updates.
HETEROGENEOUS: Mapping[tuple[int, bool], float] = {
    (60_000, False): 0.9859,
    (60_000, True): 0.9836,
    (12_000, False): 0.9766,
    (12_000, True): 0.97,
}

#: A Python float, pickled: an opcode and a float64. 250,000 dense updates of them are the 460 GB that are reported.
VALUE_PICKLED_BYTES = 9
#: A Python int, pickled: an opcode and four bytes. What the paper sends with a value is not known; this is the least.
PLACE_PICKLED_BYTES = 5
