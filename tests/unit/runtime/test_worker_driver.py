"""A worker's driver keeps the next model beside the one its trainer has, and hands it over when a lease begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.identity.identity import Authority
from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.roles.actions import Action, Evaluate, StageModel, Train
from shoal.roles.events import Event, TrainerFailed
from shoal.runtime.energy import MEASURED, EnergyMeter
from shoal.runtime.role_host import RoleHost
from shoal.runtime.worker_driver import WorkerDriver
from shoal.trainer.protocol import TrainerSettings
from shoal.wire.messages import Dataset, JobSpec, Message

SIZE = 5


def _send_nothing(to: str, message: Message) -> None:
    raise AssertionError("nothing is to be sent")


class Around:
    async def fetch(self, sha256: str) -> Path:
        raise AssertionError("nothing is to be fetched")

    def ended(self, job: str, reason: str) -> None:
        raise AssertionError("it does not end")


class Listening:
    """A role that is only told."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self.told.append(event)
        return []


def labouring(directory: Path, story: Callable[[WorkerDriver, RoleHost, Listening], Awaitable[None]]) -> None:
    """With a trainer that has memory and no process: whatever it is asked, it fails once it has the model."""
    data = Dataset(manifest="0" * 64, examples=1)
    spec = JobSpec(
        job="j", name="j", entry="t:T", bundle="0" * 64, initial="0" * 64, train=data, test=data, plan=Plan()
    )
    member = Authority.create(directory / "authority", "pond").identity(node="pi", role="node")

    async def run() -> None:
        worker_driver = WorkerDriver(spec, Around(), member=member, cache=directory, child_module="none")
        worker_driver._trainer._renew_shared(SIZE)
        host, role = RoleHost("worker", worker_driver.perform, send=_send_nothing), Listening()
        host.start(role)
        try:
            await story(worker_driver, host, role)
        finally:
            await host.stop()
            await worker_driver.stop()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_measured_lease_tells_the_leader_what_a_cpu_second_takes(tmp_path: Path) -> None:
    """A real process that trains nothing, and a counter of energy in a tree of files that goes on while it is at it."""
    zone = tmp_path / "root/sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", "0"), ("max_energy_range_uj", "1000000000")):
        (zone / name).write_text(value)
    data, layout = Dataset(manifest="0" * 64, examples=1), Layout.of([("w", (SIZE,), "parameter")])
    plan = Plan(data="local", work="sized", budget_battery_percent=0.075)
    spec = JobSpec(job="j", name="j", entry="t:T", bundle="0" * 64, initial="0" * 64, train=data, test=data, plan=plan)
    member = Authority.create(tmp_path / "authority", "pond").identity(node="pi", role="node")
    settings = TrainerSettings(
        bundle_dir=".", entry="t:T", train=(), layout=layout, seed=0, batch_size=4, learning_rate=0.1, pace_s=0.3
    )

    async def run() -> None:
        driver = WorkerDriver(spec, Around(), member=member, cache=tmp_path, child_module="shoal.trainer.echo")
        driver._meter = EnergyMeter(root=tmp_path / "root")
        await driver._trainer.start(settings)
        try:
            state = driver._sense(4)
            assert state is not None
            assert state.joules_per_cpu_s is None
            lease = asyncio.create_task(driver._learn(Train(lease=1, epoch=0, batches=(0,), examples=4)))
            # The first reading is taken before the lease begins, which then takes 0.3 s.
            await asyncio.sleep(0)
            (zone / "energy_uj").write_text("50")
            result, spent = await lease
            assert (spent.kind, spent.joules) == (MEASURED, pytest.approx(50e-6))
            state = driver._sense(4)
            assert state is not None
            assert result.cpu_s > 0
            assert state.joules_per_cpu_s == pytest.approx(50e-6 / result.cpu_s)
        finally:
            await driver.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_people_see_for_how_long_a_step_of_preparing_has_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(driver: WorkerDriver, _host: RoleHost, _role: Listening) -> None:
        now_s = 1000.0
        monkeypatch.setattr("shoal.runtime.worker_driver.time", SimpleNamespace(monotonic=lambda: now_s))
        assert driver.preparing == ""
        driver._begin_step("starting PyTorch and the task")
        assert driver.preparing == "starting PyTorch and the task"
        now_s += 13
        assert driver.preparing == "starting PyTorch and the task (10 s)"
        driver._begin_step("")
        now_s += 13
        assert driver.preparing == ""

    labouring(tmp_path, story)


def part(start: int, *values: float) -> StageModel:
    return StageModel(start=start, tensors={"model": np.array(values, dtype=np.float32)})


def train(lease: int, *, staged: bool = True) -> Train:
    return Train(lease=lease, epoch=0, batches=(0,), staged=staged)


async def _told(role: Listening, count: int) -> None:
    while len([event for event in role.told if isinstance(event, TrainerFailed)]) < count:
        await asyncio.sleep(0.001)


def test_what_was_staged_is_what_the_trainer_gets(tmp_path: Path) -> None:
    async def story(worker_driver: WorkerDriver, host: RoleHost, role: Listening) -> None:
        model = worker_driver._trainer.shared.model
        model[:] = 7
        await worker_driver.perform(host, part(2, 3, 4, 5))
        await worker_driver.perform(host, part(0, 1, 2))
        assert model.tolist() == [7] * SIZE, "the trainer may be at an older lease"
        await worker_driver.perform(host, train(1))
        await _told(role, 1)
        assert model.tolist() == [1, 2, 3, 4, 5]

    labouring(tmp_path, story)


def test_a_part_is_copied_before_its_memory_is_used_again(tmp_path: Path) -> None:
    async def story(worker_driver: WorkerDriver, host: RoleHost, role: Listening) -> None:
        received = part(0, 1, 2, 3, 4, 5)
        await worker_driver.perform(host, received)
        received.tensors["model"].fill(-1)
        await worker_driver.perform(host, Evaluate(lease=1, chunks=(0,), staged=True))
        await _told(role, 1)
        assert worker_driver._trainer.shared.model.tolist() == [1, 2, 3, 4, 5]

    labouring(tmp_path, story)


def test_parts_of_the_next_version_do_not_reach_a_lease_that_waits_for_its_trainer(tmp_path: Path) -> None:
    async def story(worker_driver: WorkerDriver, host: RoleHost, role: Listening) -> None:
        await worker_driver.perform(host, part(0, 1, 1, 1, 1, 1))
        async with worker_driver._busy:
            # It is at a lease that is void by now; the next one waits behind it.
            await worker_driver.perform(host, train(2))
            await asyncio.sleep(0.01)
            await worker_driver.perform(host, part(0, 2, 2, 2))
        await _told(role, 1)
        assert worker_driver._trainer.shared.model.tolist() == [1] * SIZE
        await worker_driver.perform(host, part(3, 2, 2))
        await worker_driver.perform(host, train(3))
        await _told(role, 2)
        assert worker_driver._trainer.shared.model.tolist() == [2] * SIZE

    labouring(tmp_path, story)
