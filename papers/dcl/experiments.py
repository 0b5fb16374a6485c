"""The experiments by name, in the order of the thesis' fourth chapter."""

from __future__ import annotations

from papers.dcl import analyst, brute_force, communication, operations, same, secrecy
from papers.harness.rows import Experiment

EXPERIMENTS = (
    Experiment(name="communication", figure="§4.1, Table 4.1", run=communication.run),
    Experiment(name="brute_force", figure="§4.2, equations (4.9) and (4.10)", run=brute_force.run),
    Experiment(name="secrecy", figure="§3.2 and §4.2: is it secret?", run=secrecy.run),
    Experiment(name="same", figure="§4.3: distributed and centralised", run=same.run),
    Experiment(name="operations", figure="§4.5, Figures 4.1 to 4.6", run=operations.run),
    Experiment(name="analyst", figure="§4.5: the analyst's part", run=analyst.run),
)
