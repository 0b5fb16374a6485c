"""An outer optimiser by its name and its numbers. A value without numpy, below plans, so that a plan can check it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse

#: They follow the mean update itself: its length and its direction.
FOLLOWING = ("sgd", "nesterov")
#: They divide each value by how large it usually is, and so need a second vector.
ADAPTIVE = ("adam", "adamw", "yogi", "adagrad")
OUTER_KINDS = (*FOLLOWING, *ADAPTIVE)

#: How far the leader goes, where a plan does not say. An adaptive step is about as long as its rate in every value.
RATES = dict.fromkeys(FOLLOWING, 1.0) | dict.fromkeys(ADAPTIVE, 1e-3)

BETA2 = 0.999
EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterRule:
    """How the mean update of a round becomes a step (``learning.outer``)."""

    kind: str = "sgd"
    #: The outer rate, unless a schedule sets it for a version.
    rate: float = 1.0
    #: The share of the last step that is kept, or beta1 if the rule is adaptive.
    momentum: float = 0.0
    beta2: float = BETA2
    epsilon: float = EPSILON
    #: Of ``adamw``: the share of each parameter that a step takes away, times the rate.
    weight_decay: float = 0.0
    #: The learning rate of the leases: an update of one batch is minus this times the gradient.
    inner_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in OUTER_KINDS:
            raise Misuse(f"outer = {self.kind!r} is not a choice Shoal has; there is: {', '.join(OUTER_KINDS)}")
        if not 0 < self.rate < math.inf:
            raise Misuse(f"outer_rate is positive, not {self.rate}")
        if not 0 <= self.momentum < 1:
            raise Misuse(f"momentum is in [0, 1), not {self.momentum}")
        if not 0 <= self.beta2 < 1:
            raise Misuse(f"outer_beta2 is in [0, 1), not {self.beta2}")
        if not 0 < self.epsilon < math.inf:
            raise Misuse(f"outer_epsilon is positive, not {self.epsilon}")
        if not 0 <= self.weight_decay < math.inf:
            raise Misuse(f"weight_decay is a number from 0, not {self.weight_decay}")
        if not 0 < self.inner_rate < math.inf:
            raise Misuse(f"learning_rate is positive, not {self.inner_rate}")

    @property
    def is_adaptive(self) -> bool:
        """Whether it keeps a second vector, of squares."""
        return self.kind in ADAPTIVE

    @property
    def decays(self) -> bool:
        """Whether its step takes a share of the parameters away."""
        return self.kind == "adamw" and self.weight_decay > 0
