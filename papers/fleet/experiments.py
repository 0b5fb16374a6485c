"""The experiments by name, in the order of the paper's figures."""

from __future__ import annotations

from papers.fleet import alike, budgets, late, long_tail, online, private, staleness, ten, thresholds
from papers.harness.rows import Experiment

EXPERIMENTS = (
    Experiment(name="online", figure="Figure 6", run=online.run),
    Experiment(name="staleness", figure="Figure 7", run=staleness.run),
    Experiment(name="late", figure="Figure 8, each rule at its own rate", run=late.run),
    # A quick run has no time for curves to the end.
    Experiment(name="paper_rate", figure="Figure 8, at the paper's rate", run=late.paper_rate, in_quick=False),
    Experiment(name="writers", figure="Figure 8, by real writers", run=late.writers, in_quick=False),
    Experiment(name="ten", figure="Figure 8, the authors' ten clients and decay", run=ten.run),
    Experiment(name="long_tail", figure="Figure 9", run=long_tail.run),
    Experiment(name="alike", figure="Figure 10", run=alike.run),
    Experiment(name="private", figure="Figure 11", run=private.run),
    Experiment(name="thresholds", figure="Figure 15", run=thresholds.run),
    Experiment(name="budgets", figure="Figures 12 and 13, modelled", run=budgets.run),
)
