"""What the thesis says: sizes, figures and where they stand. Values only; nothing of this is measured here."""

from __future__ import annotations

#: §4.1: all of MNIST, its pixels, and the neurons of the first layer. Four bytes a value.
SAMPLES, FEATURES, NEURONS = 60_000, 784, 128
VALUE_BYTES = 4
#: §4.3: the network whose training is the same, distributed or not.
SIDES = (784, 128, 10)
#: Of Table 4.1: schedulers, and executors of each.
SCHEDULERS, EXECUTORS_EACH = 10, 10

#: Table 4.1, in GB of a billion bytes: issuing tasks, receiving results.
TABLE_4_1_GB = {"analyst": (0.1886, 24.58), "scheduler": (0.0189, 2.458), "executor": (0.0019, 0.2458)}

#: §4.5: the analyst's part of a layer's computations.
ANALYST_SHARE = 0.0002

#: §4.2: the fastest crowd of computers, and exponents of ten of ages of the universe: k < d, and k > d.
FLOPS = 2.3e18
AGES_LOG10 = {"shuffles alone": 260_832, "shuffles and order": 260_980}
#: 13.8 billion years.
AGE_OF_UNIVERSE_S = 13.8e9 * 365.25 * 86_400

#: §4.4: Python's networking, and that of C++ and Go, in Gb/s.
PYTHON_GBPS, COMPILED_GBPS = 3.5, 16.0
#: §4.5: each operation so often, and the mean.
REPEATS = 100
