"""The paper's scheduling as a game: five states, one device a step, reward (7), its errors resolved. Knows no network.

A pair takes two steps: the first device chosen sends, the second gets. The sender is done; the one that got shows so
until the next pair is made up, and is free again. The paper leaves open who is chosen first.

- β is the battery's cost of an aggregation and ρ the penalty of a busy device: the text has their names swapped.
- The penalty is ρ·(1 - t/2(N-1)): as printed, ρ + t·ρ/2(N-1) with ρ < 0 grows with t, and the text wants it to shrink.
- A busy device is waited for: it then takes part as any other.
- "Exceeds limits" cannot happen: N - 1 pairs are 2(N-1) steps, and any other choice is invalid and ends the game.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import cache

import numpy as np

from shoal.errors import Misuse

ALPHA, BETA, RHO = -0.04, 0.1, -0.8
DONE_REWARD, INVALID_REWARD = 1.0, -1.0
#: Of TimedGame: about as much as α and β are.
MERGE_COST = 0.1


class State(IntEnum):
    FREE = 0
    BUSY = 1
    SEND = 2
    GET = 3
    DONE = 4


def busy_penalty(step: int, devices: int) -> float:
    return RHO * (1 - step / (2 * (devices - 1)))


def as_seen(states: Sequence[State]) -> np.ndarray:
    """One of five for each device."""
    out = np.zeros((len(states), len(State)), dtype=np.float32)
    out[np.arange(len(states)), states] = 1.0
    return out.ravel()


class Game:
    """One round. ``choose`` until it is over."""

    def __init__(self, busy: Sequence[bool]) -> None:
        if len(busy) < 2:
            raise Misuse("a round of one device has nothing to schedule")
        self.devices = len(busy)
        self.states = [State.BUSY if each else State.FREE for each in busy]
        #: How often each device got another's model: n_agg.
        self.got = [0] * self.devices
        self.pairs: list[tuple[int, int]] = []
        self.step = 0
        self.over = False
        self._sender: int | None = None

    @property
    def complete(self) -> bool:
        return len(self.pairs) == self.devices - 1

    def seen(self) -> np.ndarray:
        return as_seen(self.states)

    def valid(self) -> list[int]:
        return [place for place, state in enumerate(self.states) if state not in (State.DONE, State.SEND)]

    def choose(self, device: int) -> float:
        """The reward."""
        if self.over:
            raise Misuse("the game is over")
        state = self.states[device]
        if state in (State.DONE, State.SEND):
            self.over = True
            return INVALID_REWARD
        reward = self._send(device) if self._sender is None else self._get(self._sender, device)
        if state == State.BUSY and not self.over:
            reward = busy_penalty(self.step, self.devices)
        self.step += 1
        return reward

    def _send(self, device: int) -> float:
        self.states = [State.FREE if state == State.GET else state for state in self.states]
        self.states[device] = State.SEND
        self._sender = device
        return ALPHA + BETA * self.got[device]

    def _get(self, sender: int, device: int) -> float:
        reward = ALPHA - BETA * self.got[device]
        self.states[sender], self.states[device] = State.DONE, State.GET
        self.got[device] += 1
        self.pairs.append((sender, device))
        self._sender = None
        if self.complete:
            self.over = True
            return DONE_REWARD
        return reward


class TimedGame(Game):
    """The same with another reward, which the paper does not have: what a merge adds to the round's time costs so much.

    What is seen is the same: nobody can tell how long a device will be busy.
    """

    def __init__(self, ready: Sequence[float]) -> None:
        super().__init__([value > 0 for value in ready])
        self._ready = list(ready)
        self._end = 0.0

    def choose(self, device: int) -> float:
        made = len(self.pairs)
        reward = super().choose(device)
        if reward == INVALID_REWARD and self.over:
            return reward
        if len(self.pairs) == made:
            return 0.0
        sender, receiver = self.pairs[-1]
        end = max(self._ready[sender], self._ready[receiver]) + 1.0
        self._ready[receiver] = end
        added, self._end = max(0.0, end - self._end), max(self._end, end)
        return (DONE_REWARD if self.over else 0.0) - MERGE_COST * added


def random_chance(devices: int) -> float:
    """That a game of choices by chance among all devices gets to its end: N!·(N-1)!/N^(2(N-1))."""
    return float(math.factorial(devices) * math.factorial(devices - 1) / devices ** (2 * (devices - 1)))


def threshold(devices: int) -> float:
    """f(N) + g(N), before Φ.   (Eq. 8 to 10)"""
    return balance(devices) + BETA * math.log2(devices)


def balance(devices: int) -> float:
    """β·(N mod 2) + f(⌊N/2⌋), nothing for one.   (Eq. 9)"""
    return 0.0 if devices <= 1 else BETA * (devices % 2) + balance(devices // 2)


# What a perfect agent gets ---------------------------------------------------------------------------------

#: Devices that hold a partial: (n_agg, busy), sorted. All that reward (7) depends on.
Holders = tuple[tuple[int, bool], ...]


@cache
def best_return(holders: Holders, devices: int) -> float:
    """The most that the game can still bring."""
    if len(holders) == 1:
        return 0.0
    return max(value for _, _, value in _options(holders, devices))


def _options(holders: Holders, devices: int) -> list[tuple[tuple[int, bool], tuple[int, bool], float]]:
    """(sender, receiver, what it and all after it bring), a row for each that differs."""
    step = 2 * (devices - len(holders))
    found = []
    for sender in sorted(set(holders)):
        rest = list(holders)
        rest.remove(sender)
        for receiver in sorted(set(rest)):
            after = list(rest)
            after.remove(receiver)
            after.append((receiver[0] + 1, False))
            sent = busy_penalty(step, devices) if sender[1] else ALPHA + BETA * sender[0]
            got = busy_penalty(step + 1, devices) if receiver[1] else ALPHA - BETA * receiver[0]
            if len(holders) == 2:
                got = DONE_REWARD
            found.append((sender, receiver, sent + got + best_return(tuple(sorted(after)), devices)))
    return found


def perfect_pairs(busy: Sequence[bool], generator: np.random.Generator) -> list[tuple[int, int]]:
    """An order that no other beats in reward (7); among equals by chance, as the reward says nothing of them."""
    devices = len(busy)
    held = {place: (0, bool(each)) for place, each in enumerate(busy)}
    pairs = []
    while len(held) > 1:
        options = _options(tuple(sorted(held.values())), devices)
        most = max(value for _, _, value in options)
        equal = [option for option in options if option[2] > most - 1e-9]
        sender_kind, receiver_kind, _ = equal[int(generator.integers(len(equal)))]
        sender = _any_of(held, sender_kind, generator)
        del held[sender]
        receiver = _any_of(held, receiver_kind, generator)
        held[receiver] = (held[receiver][0] + 1, False)
        pairs.append((sender, receiver))
    return pairs


def _any_of(held: dict[int, tuple[int, bool]], kind: tuple[int, bool], generator: np.random.Generator) -> int:
    places = [place for place, each in held.items() if each == kind]
    return places[int(generator.integers(len(places)))]


def return_of(busy: Sequence[bool], pairs: Sequence[tuple[int, int]]) -> float:
    """What reward (7) gives for these pairs in this order."""
    game = Game(busy)
    return sum(game.choose(sender) + game.choose(receiver) for sender, receiver in pairs)
