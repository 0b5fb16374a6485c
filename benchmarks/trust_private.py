"""Private plans on real handwriting: what noise costs in accuracy, and whether the account is right. See ``trust``.

539 writers are 539 devices; 49 of them make a version, each again after all others had their turn. The network has one
hidden layer and 4,978 values, on images of 14 x 14. Cutting, adding up and noise are Shoal's own parts. Accuracy is of
the mean of the last third of all versions, with and without noise, on 10,000 images of other writers.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.privacy_ratios import gaussian_ratio, tree_ratio
from shoal.learning.accountant import epsilon_of
from shoal.learning.blt import coefficients, toeplitz_ratio
from shoal.learning.clipping import clipped
from shoal.learning.outer import OuterState, outer_step
from shoal.plan import Plan, epochs
from shoal.roles.leader.gathering.private_sum import PrivateSum
from testbed.results import say

WRITERS, COHORT, DELTA = 539, 49, 1e-4
HIDDEN, SIDE = 24, 14
SHAPES = ((SIDE * SIDE, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]
SIZE = sum(SIZES)
BATCH, STEPS, RATE, CLIP = 16, 2, 0.3, 0.3

#: Epsilon -> how often each writer takes part. Less noise a version, or more versions: tried on the same images.
PASSES = {8.0: 8, 2.0: 6}
#: Versions, participations and versions apart, at which chains are compared with trees.
AGAINST_TREE = (1024, 8, 128)
#: Deviations and participations at which the account is compared.
ACCOUNTS = ((1.0, 1), (4.0, 16), (5.0, 100), (10.0, 40))


def plan_of(epsilon: float, passes: int) -> Plan:
    return Plan(
        trust=f"private({epsilon:g}, {DELTA:g})",
        data="local",
        cohort=COHORT,
        workers_min=WRITERS,
        epoch_leases=WRITERS,
        until=epochs(passes),
        clip_update=CLIP,
        learning_rate=RATE,
        outer_rate=0.3,
    )


def pooled(images: np.ndarray) -> np.ndarray:
    """Each four pixels as one. Their mean varies less than each of them does."""
    small: np.ndarray = 1.3 * images.reshape(-1, SIDE, 2, SIDE, 2).mean((2, 4)).reshape(-1, SIDE * SIDE)
    return small


def _layers(models: np.ndarray) -> list[np.ndarray]:
    parts = np.split(models, np.cumsum(SIZES)[:-1], axis=-1)
    return [part.reshape(*models.shape[:-1], *shape) for part, shape in zip(parts, SHAPES, strict=True)]


def first_model(rng: np.random.Generator) -> np.ndarray:
    scales = (math.sqrt(2 / SIDE**2), 0.0, math.sqrt(2 / HIDDEN), 0.0)
    parts = [scale * rng.standard_normal(size) for scale, size in zip(scales, SIZES, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def leases(model: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What a few steps on each device's batches change: a row a device."""
    count = len(labels)
    models = np.repeat(model[None], count, 0)
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        seen, wanted = images[:, part], labels[:, part]
        first, bias, second, last = _layers(models)
        inner = seen @ first + bias[:, None]
        active = np.maximum(inner, 0)
        scores = active @ second + last[:, None]
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        shares[np.arange(count)[:, None], np.arange(BATCH)[None], wanted] -= 1
        shares /= BATCH
        back = (shares @ second.transpose(0, 2, 1)) * (inner > 0)
        of_first, of_second = seen.transpose(0, 2, 1) @ back, active.transpose(0, 2, 1) @ shares
        rows = (of_first.reshape(count, -1), back.sum(1), of_second.reshape(count, -1), shares.sum(1))
        models = models - np.float32(RATE) * np.concatenate(rows, axis=1)
    moved: np.ndarray = models - model
    return moved


def accuracy(model: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
    first, bias, second, last = _layers(model)
    return float(((np.maximum(images @ first + bias, 0) @ second + last).argmax(1) == labels).mean())


class Handwriting:
    """Small images by writer."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, writers: np.ndarray) -> None:
        self.images, self.labels = pooled(images), labels
        self.of = [np.flatnonzero(writers == writer) for writer in np.unique(writers)]


def train(data: Handwriting, test: Handwriting, plan: Plan, *, seed: int, has_noise: bool = True) -> float:
    """The accuracy of a job of this plan; without noise and cuts, for comparison."""
    rng, privacy = np.random.default_rng(seed), plan.privacy
    assert privacy is not None
    model, state = first_model(rng), OuterState.zeros(plan.outer_rule, SIZE)
    chance = np.random.default_rng([seed, 1])
    private = PrivateSum(SIZE, privacy, lambda size: chance.standard_normal(size, dtype=np.float32))
    order, kept, since = rng.permutation(WRITERS), np.zeros(SIZE), 0
    for version in range(privacy.versions):
        turn = version % privacy.apart
        devices = order[turn * COHORT : (turn + 1) * COHORT]
        chosen = np.stack([rng.choice(data.of[device], BATCH * STEPS) for device in devices])
        made = leases(model, data.images[chosen], data.labels[chosen])
        if has_noise:
            for device, update in zip(devices, made, strict=True):
                private.add(f"{device:03}", clipped(update, clip=privacy.clip), weight=1.0, scale=1.0)
            mean, _ = private.mean()
            private.clear()
        else:
            mean = made.mean(0)
        change, state = outer_step(plan.outer_rule, state, mean)
        model = model + change
        if version >= 0.7 * privacy.versions:
            kept, since = kept + model, since + 1
    return accuracy((kept / since).astype(np.float32), test.images, test.labels)


def account() -> dict[str, object]:
    """How far our epsilon is from that of dp-accounting, and from a sum over densities: the larger of the two."""
    # Only here: it loads SciPy.
    import dp_accounting
    from dp_accounting import pld

    errors = [abs(_by_density(z, often) - _ours(z, often)) / _ours(z, often) for z, often in ACCOUNTS]
    for z, often in ACCOUNTS:
        theirs = pld.PLDAccountant()
        theirs.compose(dp_accounting.GaussianDpEvent(z), often)
        errors.append(abs(theirs.get_epsilon(DELTA) - _ours(z, often)) / _ours(z, often))
    return {"epsilon_error": float(max(errors)), "epsilon_oracle": "dp-accounting PLD, sum over densities"}


def _ours(multiplier: float, often: int) -> float:
    return epsilon_of(gaussian_ratio(multiplier=multiplier, participations=often), delta=DELTA)


def _by_density(multiplier: float, often: int) -> float:
    """δ(ε) = ∫ max(0, p - e^ε·q) of N(μ, 1) and N(0, 1), and ε by halving."""
    ratio = math.sqrt(often) / multiplier
    places = np.linspace(-40, 40, 800_001)
    p, q = (np.exp(-((places - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (ratio, 0.0))
    low, high = 0.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        delta = float(np.maximum(0, p - math.exp(middle) * q).sum() * (places[1] - places[0]))
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


def against_tree() -> float:
    """Root mean square of the noise in the running sums, of a chain and of a tree, at one epsilon."""
    versions, often, apart = AGAINST_TREE
    column = coefficients(versions)
    inverse = np.zeros(versions)
    inverse[0] = 1.0
    for at in range(1, versions):
        inverse[at] = -float(column[1 : at + 1] @ inverse[at - 1 :: -1][:at])
    chain = math.sqrt(float(np.cumsum(np.cumsum(inverse) ** 2).mean())) * toeplitz_ratio(often, apart, versions)
    nodes = math.sqrt(float(np.mean([at.bit_count() for at in range(1, versions + 1)])))
    return chain / (nodes * tree_ratio(multiplier=1.0, participations=often, updates=versions))


def measure(data: Handwriting, test: Handwriting, *, seeds: tuple[int, ...]) -> dict[str, object]:
    result: dict[str, object] = {"blt_to_tree": against_tree()} | account()
    best = max(PASSES.values())
    plain = [train(data, test, plan_of(8.0, best), seed=seed, has_noise=False) for seed in seeds]
    say(f"without noise: {100 * float(np.mean(plain)):.1f} %")
    for epsilon, passes in PASSES.items():
        found = [train(data, test, plan_of(epsilon, passes), seed=seed) for seed in seeds]
        lost = 100 * (float(np.mean(plain)) - float(np.mean(found)))
        say(f"private({epsilon:g}), {passes} participations: {lost:.1f} points lost")
        result[f"private{epsilon:g}_points"] = lost
    return result
