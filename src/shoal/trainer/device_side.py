"""What a trainer's process keeps for its device from lease to lease, beside the model. Imports torch.

A device has a trainer of its own. The simulator has one for all of its devices, and hands it each device's side in
turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.trainer.optimisers import InnerOptimiser
from shoal.trainer.own_examples import OwnExamples


@dataclass(frozen=True, slots=True)
class DeviceSide:
    #: The device's own examples, or None if the job's examples are shared.
    examples: OwnExamples | None
    #: Its state stays here if the plan says ``inner_state = "kept"``.
    optimiser: InnerOptimiser
    #: Makes the noise of label counts. It is not seeded on a device: noise that anyone could reproduce would hide
    #: nothing.
    noise: Callable[[], np.random.Generator] = np.random.default_rng
