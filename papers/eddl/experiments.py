"""The experiments by name, in the order of the paper's figures."""

from __future__ import annotations

from papers.eddl import (
    accuracy,
    batch_size,
    batch_time,
    communities,
    families,
    overhead,
    own_split,
    saturated,
    splitting,
    stragglers,
    testbed_runs,
    training_time,
)
from papers.harness.rows import Experiment

EXPERIMENTS = (
    Experiment(name="families", figure="Figure 1, families only", run=families.run),
    Experiment(name="communities", figure="Table 3, with families only", run=communities.run),
    Experiment(name="batch_time", figure="Figure 6", run=batch_time.run),
    Experiment(name="accuracy", figure="Figure 7", run=accuracy.run),
    # A quick run has one lesson, which is Figure 7's.
    Experiment(name="own_split", figure="Figure 7 on its own split, Figure 12 (a)", run=own_split.run, in_quick=False),
    Experiment(name="training_time", figure="Figures 8, 9 and 10", run=training_time.run),
    Experiment(name="saturated", figure="Figure 11", run=saturated.run),
    Experiment(name="splitting", figure="Figure 12", run=splitting.run),
    Experiment(name="stragglers", figure="Figure 13", run=stragglers.run),
    Experiment(name="batch_size", figure="Figure 14", run=batch_size.run),
    # A quick run has one real piece, and that is the testbed's.
    Experiment(name="overhead", figure="Figure 15 (a)", run=overhead.run, in_quick=False),
    Experiment(name="testbed", figure="Figures 6 and 15 (b), measured", run=testbed_runs.run),
)
