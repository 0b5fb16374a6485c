"""A device's agent as it is, but for what it sends: run as ``python -m lying_agent --home DIR ...``.

It trains every lease honestly and sends something else, another lie each time: what it would send turned round, ten
times as long and turned round, a little off the mean of what it knows (ALIE), a part of that turned round (IPM), noise.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from shoal.roles.worker.worker import Worker
from shoal.runtime import agent
from shoal.wire.messages import Tensors, Work

KNOWN: deque[np.ndarray] = deque(maxlen=10)
HONEST = Worker._carried_on


def lie(number: int, own: np.ndarray) -> np.ndarray:
    KNOWN.append(np.array(own))
    mean, deviation = np.mean(KNOWN, axis=0), np.std(KNOWN, axis=0)
    match number % 5:
        case 0:
            return -own
        case 1:
            return -10 * own
        case 2:
            return mean - 1.5 * deviation
        case 3:
            return -0.5 * mean
        case _:
            return np.random.default_rng(number).normal(0, 3 * float(np.abs(mean).mean()), own.size)


def carried_on(self: Worker, work: Work, tensors: Tensors) -> Tensors:
    honest = HONEST(self, work, tensors)
    return {"delta": lie(work.version, honest["delta"]).astype(np.float32)}


if __name__ == "__main__":
    Worker._carried_on = carried_on  # type: ignore[method-assign]
    sys.exit(agent.main())
