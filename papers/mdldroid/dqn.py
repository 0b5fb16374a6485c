"""The paper's scheduler: a DQN that plays the game of ``decisions``, and four ways to explore. Needs torch.

The paper gives the idea (a DQN with a target network) and no sizes: two hidden layers of 64, a memory of 20,000 steps,
batches of 64, Adam at 10⁻³, γ 0.99, every second step a batch. A choice by exploration is drawn among the valid
devices: drawn among all, hardly a game would ever end (``decisions.random_chance``). A choice of the network's own may
be invalid while it learns, which costs -1 and ends the game. An agent that explores for long would never see that; so a
share of random choices may ``stray`` to any device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from papers.mdldroid.decisions import Game, State, as_seen

torch.set_num_threads(1)

_HIDDEN = 64
_MEMORY = 20_000
_BATCH = 64
_RATE = 1e-3
_GAMMA = 0.99
_LEARN_EVERY = 2
_TARGET_EVERY = 200

#: How exploration fades, for each game, and where it ends.
DECAY, LEAST = 0.98, 0.02
#: Where TDGE begins to fade and where TGE stays, once the threshold is passed: the paper's ε_new has no figure.
AFTER_THRESHOLD = 0.3
#: What plain ε-greedy always has.
PLAIN = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How ε begins, whether it waits for the threshold, and whether it fades."""

    name: str
    begin: float
    waits: bool
    fades: bool

    def after(self, epsilon: float, *, passed_now: bool, passed: bool) -> float:
        """ε for the next game."""
        if self.waits and not passed:
            return epsilon
        if self.waits and passed_now:
            epsilon = AFTER_THRESHOLD
        return max(LEAST, DECAY * epsilon) if self.fades else epsilon


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(name="TDGE", begin=1.0, waits=True, fades=True),
        Strategy(name="TGE", begin=1.0, waits=True, fades=False),
        Strategy(name="DGE", begin=1.0, waits=False, fades=True),
        Strategy(name="plain", begin=PLAIN, waits=False, fades=False),
    )
}


@dataclass(slots=True)
class _Memory:
    width: int
    seen: np.ndarray = field(init=False)
    then: np.ndarray = field(init=False)
    chosen: np.ndarray = field(init=False)
    reward: np.ndarray = field(init=False)
    over: np.ndarray = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.seen = np.zeros((_MEMORY, self.width), dtype=np.float32)
        self.then = np.zeros((_MEMORY, self.width), dtype=np.float32)
        self.chosen = np.zeros(_MEMORY, dtype=np.int64)
        self.reward = np.zeros(_MEMORY, dtype=np.float32)
        self.over = np.zeros(_MEMORY, dtype=np.float32)

    def keep(self, seen: np.ndarray, chosen: int, reward: float, then: np.ndarray, over: bool) -> None:
        place = self.count % _MEMORY
        self.seen[place], self.then[place] = seen, then
        self.chosen[place], self.reward[place], self.over[place] = chosen, reward, over
        self.count += 1


class Agent:
    def __init__(self, devices: int, *, seed: int, stray: float = 0.0) -> None:
        torch.manual_seed(seed)
        self._stray = stray
        self.devices = devices
        self._generator = np.random.default_rng([seed, devices, 7])
        width = 5 * devices
        self._values, self._target = _network(width, devices), _network(width, devices)
        self._target.load_state_dict(self._values.state_dict())
        self._optimiser = torch.optim.Adam(self._values.parameters(), lr=_RATE, fused=True)
        self._memory = _Memory(width)

    def play(self, game: Game, *, epsilon: float) -> float:
        """A game from which it learns; what it brought."""
        total = 0.0
        seen = game.seen()
        while not game.over:
            chosen = self._at_random(game) if self._generator.random() < epsilon else int(self._scores(seen).argmax())
            reward = game.choose(chosen)
            then = game.seen()
            self._memory.keep(seen, chosen, reward, then, game.over)
            total += reward
            seen = then
            if self._memory.count % _LEARN_EVERY == 0 and self._memory.count >= _BATCH:
                self._learn()
            if self._memory.count % _TARGET_EVERY == 0:
                self._target.load_state_dict(self._values.state_dict())
        return total

    def _at_random(self, game: Game) -> int:
        if self._stray and self._generator.random() < self._stray:
            return int(self._generator.integers(self.devices))
        return int(self._generator.choice(game.valid()))

    def best(self, states: Sequence[State], among: Sequence[int]) -> int:
        """Its choice of these, when the devices are so."""
        scores = self._scores(as_seen(states))
        return max(among, key=lambda place: float(scores[place]))

    def pairs(self, busy: Sequence[bool]) -> tuple[list[tuple[int, int]], bool]:
        """The order it is sure of, the best of the valid choices each time; and whether it needed to be told them."""
        game, helped = Game(busy), False
        while not game.over:
            best = self.best(game.states, game.valid())
            helped |= self.best(game.states, range(self.devices)) != best
            game.choose(best)
        return game.pairs, helped

    def own_return(self, busy: Sequence[bool]) -> float:
        """What its own choices bring, valid or not."""
        game, total = Game(busy), 0.0
        while not game.over:
            total += game.choose(int(self._scores(game.seen()).argmax()))
        return total

    def _scores(self, seen: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(self._values(torch.from_numpy(seen)).numpy())

    def _learn(self) -> None:
        kept = self._memory
        places = self._generator.integers(0, min(kept.count, _MEMORY), _BATCH)
        with torch.no_grad():
            later = self._target(torch.from_numpy(kept.then[places])).max(1).values
            wanted = torch.from_numpy(kept.reward[places]) + _GAMMA * (1 - torch.from_numpy(kept.over[places])) * later
        scores = self._values(torch.from_numpy(kept.seen[places]))
        said = scores.gather(1, torch.from_numpy(kept.chosen[places])[:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(said, wanted)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()


def _network(width: int, devices: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, devices)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    agent: Agent
    games: int
    seconds: float
    #: What each game brought.
    returns: tuple[float, ...]


def learn(
    devices: int,
    *,
    strategy: Strategy,
    deal: Callable[[int], Game],
    threshold: float,
    games: int,
    seed: int,
    stray: float = 0.0,
    is_enough: Callable[[Agent], bool] | None = None,
    look_every: int = 10,
    agent: Agent | None = None,
) -> Learned:
    """Play so many games, or until it is enough; looking whether it is does not count as time. ``agent`` learns again
    what it learned before, from the first ε on."""
    agent = agent or Agent(devices, seed=seed, stray=stray)
    epsilon, passed = strategy.begin, False
    returns: list[float] = []
    seconds = 0.0
    for number in range(games):
        began_s = time.process_time()
        brought = agent.play(deal(number), epsilon=epsilon)
        passed_now = brought > threshold and not passed
        passed |= passed_now
        epsilon = strategy.after(epsilon, passed_now=passed_now, passed=passed)
        returns.append(brought)
        seconds += time.process_time() - began_s
        if is_enough is not None and (number + 1) % look_every == 0 and is_enough(agent):
            break
    return Learned(agent=agent, games=len(returns), seconds=seconds, returns=tuple(returns))
