"""Reach for a point, as a teacher showed it: a policy by imitation. `python examples/robot/train.py`."""

import argparse

import numpy as np
import torch
from torch import nn

import shoal

UPPER, LOWER = 0.5, 0.4  # m: the two parts of the arm
TICK_S, TICKS, FASTEST = 0.05, 80, 2.0  # rad/s
REACHED = 0.03  # m


class Reach(shoal.Task):
    plan = shoal.Plan(
        **{"batch_size": 100, "lease_batches": 20, "inner": "adamw", "learning_rate": 5e-3, "momentum": 0.0},
        until=shoal.epochs(40),
    )

    def model(self):
        return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def examples(self, split):
        """Return what the arm saw in each moment, and how fast the teacher turned both joints."""
        rng = np.random.default_rng(0 if split == "train" else 1)
        seen, done = zip(*(shown(rng, teacher) for _ in range(200 if split == "train" else 40)), strict=True)
        return np.concatenate(seen).astype(np.float32), np.concatenate(done).astype(np.float32)

    def loss(self, output, y):
        return nn.functional.mse_loss(output, y)

    def metrics(self, model, batch):
        x, y = batch
        return {"mse": shoal.mean((model(x) - y).square().sum(), y.numel())}


def hand(joints):
    """Return the places of the elbow and the hand, by the angles of the joints."""
    elbow = UPPER * np.array([np.cos(joints[0]), np.sin(joints[0])])
    return elbow, elbow + LOWER * np.array([np.cos(joints.sum()), np.sin(joints.sum())])


def teacher(joints, goal):
    """Turn the joints so that the hand moves to the goal: damped least squares (Wampler, 1986)."""
    elbow, tip = hand(joints)
    turn = np.array([[-tip[1], -(tip - elbow)[1]], [tip[0], (tip - elbow)[0]]])
    wanted = 4.0 * (goal - tip)
    return np.clip(turn.T @ np.linalg.solve(turn @ turn.T + 0.01 * np.eye(2), wanted), -FASTEST, FASTEST)


def seen_of(joints, goal):
    return np.concatenate([np.cos(joints), np.sin(joints), goal])


def start_of(rng):
    """Return the joints of an arm, and a goal that it can reach."""
    joints, goal = (np.array([rng.uniform(-1, 2), rng.uniform(0.4, 2.4)]) for _ in range(2))
    return joints, hand(goal)[1]


def shown(rng, policy):
    """Let a policy reach for a point; return what it saw and did."""
    joints, goal = start_of(rng)
    seen, done = [], []
    for _ in range(TICKS):
        speeds = policy(joints, goal)
        seen.append(seen_of(joints, goal))
        done.append(speeds)
        # The arm shakes, so that the teacher also shows how to come back.
        joints = joints + TICK_S * (speeds + rng.normal(0, 0.3, 2))
    return seen, done


def policy_of(model):
    model.eval()

    def policy(joints, goal):
        with torch.no_grad():
            return model(torch.as_tensor(seen_of(joints, goal), dtype=torch.float32)).clamp(-FASTEST, FASTEST).numpy()

    return policy


def reaching(policy, count=50):
    """Let a policy reach for points that nobody showed; return the ways of the hand and how far it ends from each."""
    rng, ways, misses = np.random.default_rng(2), [], []
    for _ in range(count):
        joints, goal = start_of(rng)
        way = [hand(joints)[1]]
        for _ in range(TICKS):
            joints = joints + TICK_S * policy(joints, goal)
            way.append(hand(joints)[1])
        ways.append((np.array(way), goal))
        misses.append(np.linalg.norm(way[-1] - goal))
    return ways, np.array(misses)


def draw(policy, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, name, each in zip(panels, ("the teacher", "the policy"), (teacher, policy), strict=True):
        for way, goal in reaching(each, 8)[0]:
            (line,) = axes.plot(*way.T, linewidth=1.5)
            axes.plot(*way[0], "o", color=line.get_color(), markersize=4)
            axes.plot(*goal, "x", color=line.get_color(), markersize=8)
        axes.set(title=name, xlabel="m", aspect="equal")
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE", help="draw the ways of the hand; needs matplotlib")
    given = parser.parse_args()
    result = shoal.fit(Reach(), workers=2)
    policy = policy_of(result.model())
    reached = (reaching(policy)[1] < REACHED).mean()
    print(f"{reached:.0%} of new points reached within {100 * REACHED:.0f} cm, in {result.seconds:.0f} s")
    if given.picture:
        draw(policy, given.picture)
