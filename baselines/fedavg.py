"""FedAvg: devices train for some steps, and the leader takes the mean by examples."""

from baselines.base import Baseline, Mnist

BASELINE = Baseline(
    name="FedAvg",
    paper="McMahan et al. 2017, arXiv:1602.05629, Algorithm 1",
    task=Mnist,
    published="Tables 1 and 4: versions of the 2NN until 97 %",
)
