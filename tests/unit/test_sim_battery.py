"""A budget that is a share of the battery, over the deployed roles and modelled devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.sim.devices import Build
from shoal.sim.jobs import system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import home_line
from shoal.sim.rates import Steady
from shoal.sim.world import Settings, World
from shoal.wire.messages import Work

#: 2.5 W and 0.02 s per example: 0.05 J.
PHONE = Build(
    kind="phone",
    seconds_per_gmac=1.0,
    seconds_per_batch=0.0,
    memory_mb=1024,
    battery_wh=10.0,
    train_watts=2.5,
    line=AccessLink(up=Steady(1e6), down=Steady(1e6), latency_s=0.001),
)
GMACS = 0.02


class Leases:
    """The examples of each lease by device, and what the leader recorded of budgets."""

    def __init__(self) -> None:
        self.examples: defaultdict[str, list[int]] = defaultdict(list)
        self.told: list[str] = []

    def step(self, step: Step) -> None:
        for action in step.actions if step.role == "leader" else ():
            if isinstance(action, Send) and isinstance(action.message, Work) and action.message.kind == "train":
                self.examples[action.to].append(action.message.examples)
            if isinstance(action, Record) and action.kind == "budget.ignored":
                self.told.append(action.reason)

    def mark(self, mark: Mark) -> None:
        pass


def test_phones_train_within_a_share_of_their_batteries_and_a_board_as_leased_work() -> None:
    plan = Plan(
        data="local",
        work="sized",
        budget_battery_percent=0.05,
        batch_size=16,
        lease_batches=3,
        pace="async",
        epoch_leases=60,
        workers_min=3,
        until=Until(epochs=2),
    )
    job = system_job(plan, Layout.of([("w", (10,), "parameter")]), examples=0, job="j", gmacs_per_example=GMACS)
    builds = [PHONE, replace(PHONE, battery_wh=5.0), replace(PHONE, kind="board", battery_wh=0.0)]
    seen = Leases()
    world = World(Settings(seed=1, builds=builds, home_line=home_line("even"), jobs=[job]), observers=[seen])
    world.begin()
    assert world.run(limit_s=10_000.0)
    large, small, board = (seen.examples[name] for name in sorted(seen.examples))
    # 0.05 % of 10 Wh are 18 J: 360 examples. The half of it is the smaller phone's.
    assert 250 <= large[-1] <= 360, large
    assert 125 <= small[-1] <= 180, small
    assert set(board) == {48}
    assert len(seen.told) == 1, seen.told
    assert "reports no battery, so that budget_battery_percent = 0.05 does not apply to it" in seen.told[0]
