"""The experiments by name, in the order of the paper's figures."""

from __future__ import annotations

from papers.harness.rows import Experiment
from papers.mdldroid import accuracy, aggregating, exploring, flocks, memory, relearning, schedulers, speed

EXPERIMENTS = (
    Experiment(name="accuracy", figure="Figure 3 and Table 3", run=accuracy.run),
    Experiment(name="explore", figure="Figures 6 and 8", run=exploring.run),
    Experiment(name="offset", figure="Figure 8, with Φ set by trying", run=exploring.offset, in_quick=False),
    Experiment(name="relearn", figure="Figure 9", run=relearning.run),
    Experiment(name="schedulers", figure="Figure 10", run=schedulers.run),
    Experiment(name="lengths", figure="Figure 10, by how long devices are busy", run=schedulers.lengths),
    Experiment(name="aggregating", figure="Figure 1c", run=aggregating.run),
    Experiment(name="memory", figure="Figures 1b and 11a", run=memory.run),
    Experiment(name="speed", figure="Figures 11b and 14", run=speed.run),
    Experiment(name="flocks", figure="Figures 11b and 11c by shoal flock", run=flocks.run),
)
