"""A fleet asks one leader's ``Intake`` for work, in a small loop of events: no roles, no network, nothing is trained.

What a device does is what the worker's role does. It asks once it is there and its trainer has started; lent work, it
trains and comes back with its update, which asks for more; refused, it asks again when it was told to, if it is still
there. So every request is one message that the leader must handle: a ``Ready``, or an ``Update``.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from benchmarks.morning_fleet import Fleet
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, Sizing
from shoal.scheduling.requests import Accepted, Budget, Intake, WorkRequest
from shoal.scheduling.steering import Steering
from shoal.sim.rng import Rng

#: How the role writes "any": see ``roles.online``.
ANY_PER_S = 1e6

#: From when a device is there to its first request: it connects, fetches the task, starts a trainer.
START_S = 4.0

#: Those who are there from the beginning are so one by one.
ARRIVE_S = 300.0

#: Chance is drawn once and used in turn: a draw for each request would take as long as the leader's answer.
_DRAWN = 1 << 12

_COMES, _WORKS, _WAITS = 0, 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What became of it, by minute."""

    #: Requests that came to the leader, and those of them that were lent work.
    asked: np.ndarray
    lent: np.ndarray
    #: Devices that trained at least once.
    took_part: int
    #: Leases whose update came; those whose device was gone before.
    done: int
    lost: int
    #: Appointments of devices that were gone by then.
    missed: int
    #: Device-seconds trained for updates that came.
    trained_s: float
    #: The most requests in one second.
    worst_second: int


class _Even(Profiler):
    """Every lease is as large: what sizes are is not asked here."""

    def predict(self, features: Features) -> CostPrediction | None:
        return None

    def observed(self, features: Features, examples: int, spent: float) -> None:
        pass

    def decide(self, features: Features, budget: float) -> Sizing:
        return _SIZING


_SIZING = Sizing(examples=100, reason="the same for all")


def play(fleet: Fleet, *, per_s: float, lease_s: float, spread: float, rng: Rng) -> Course:
    """``per_s``: the plan's ``requests_per_s``; 0: whoever asks is lent work. A lease takes ``lease_s`` in the median,
    its model and its update included; ``spread`` is the deviation of the logarithm."""
    intake = Intake({"time": Budget(profiler=_Even(), budget=1.0)}, steering=Steering(per_s=per_s or ANY_PER_S))
    stream = rng.stream("leases")
    takes_s = [stream.lognormal(lease_s, spread) for _ in range(_DRAWN)]
    leader, arrivals = rng.stream("leader"), rng.stream("arrivals")
    # Numbers of another count than the leases', so that no device meets the same pair again and again.
    draws = [leader.random() for _ in range(_DRAWN - 3)]
    asked = [0] * int(fleet.window_s)
    lent = [0] * int(fleet.window_s)
    requests = [
        WorkRequest(features=Features(device=f"w{number}"), examples_held=1_000_000)
        for number in range(len(fleet.spans))
    ]
    state = [_COMES] * len(requests)
    began_s = [0.0] * len(requests)
    took_part = bytearray(len(requests))
    #: Of each device, the spans to come; and when the present one ends.
    ahead = [iter(spans) for spans in fleet.spans]
    ends_s = [0.0] * len(requests)
    never_s = fleet.window_s
    done = lost = missed = leases = requested = 0
    trained_s = 0.0

    def comes_s(number: int) -> float:
        """When a device that is not there asks next."""
        span = next(ahead[number], None)
        while span is not None:
            from_s = (span[0] or arrivals.between(0.0, ARRIVE_S)) + START_S
            if from_s < span[1]:
                ends_s[number] = span[1]
                return from_s
            span = next(ahead[number], None)
        return never_s

    # Each device has one thing ahead of it: it comes, or its lease is done, or its appointment is due.
    heap = [(comes_s(number), number) for number in range(len(requests))]
    heapify(heap)
    while heap[0][0] < never_s:
        now_s, number = heap[0]
        if state[number] == _WORKS:
            done += 1
            trained_s += now_s - began_s[number]
            took_part[number] = 1
        second = int(now_s)
        asked[second] += 1
        requested += 1
        answer = intake.decide(requests[number], now_s=now_s, draw=draws[requested % len(draws)])
        if isinstance(answer, Accepted):
            lent[second] += 1
            leases += 1
            state[number], began_s[number] = _WORKS, now_s
            next_s = now_s + takes_s[leases % _DRAWN]
        else:
            state[number] = _WAITS
            next_s = now_s + answer.retry_after_s
        if next_s >= ends_s[number]:
            if state[number] == _WORKS:
                lost += 1
            else:
                missed += 1
            state[number], next_s = _COMES, comes_s(number)
        heapreplace(heap, (next_s, number))
    return Course(
        asked=_by_minute(asked),
        lent=_by_minute(lent),
        took_part=sum(took_part),
        done=done,
        lost=lost,
        missed=missed,
        trained_s=trained_s,
        worst_second=max(asked[int(ARRIVE_S) :]),
    )


def _by_minute(by_second: list[int]) -> np.ndarray:
    by_minute: np.ndarray = np.array(by_second).reshape(-1, 60).sum(axis=1)
    return by_minute
