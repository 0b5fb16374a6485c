"""A sealed update is trained from the model whose digest is in its label, whatever its leader sends meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shoal.identity.identity import Authority
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, Train
from shoal.roles.events import Event, Trained
from shoal.runtime.role_host import RoleHost
from shoal.runtime.worker_driver import WorkerDriver
from shoal.trainer.host import TrainerHost
from shoal.trainer.protocol import TrainResult
from shoal.wire.messages import Dataset, JobSpec, Message

SIZE = 5


class Around:
    async def fetch(self, sha256: str) -> Path:
        raise AssertionError("nothing should be fetched")

    def ended(self, job: str, reason: str) -> None:
        raise AssertionError("it does not end")


class Listening:
    def __init__(self) -> None:
        self.trained: asyncio.Future[Trained] = asyncio.get_running_loop().create_future()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, Trained):
            self.trained.set_result(event)
        return []


def _send_nothing(to: str, message: Message) -> None:
    raise AssertionError("nothing should be sent")


def test_a_model_that_comes_while_a_device_trains_does_not_change_its_update(tmp_path: Path) -> None:
    """A worker ignores a lease of an older term, and the model with it must not change anything either. An update is
    the difference to the model in the trainer's memory. A leader that wrote there could make every update but one as
    large as a word can say, and take that off the sum."""
    data = Dataset(manifest="0" * 64, examples=1)
    plan = Plan(trust="sealed(4, 0%, 0%)", data="local", workers_min=4, epoch_leases=8, until=Until(epochs=1))
    spec = JobSpec(job="j", name="j", entry="t:T", bundle="0" * 64, initial="0" * 64, train=data, test=data, plan=plan)
    member = Authority.create(tmp_path / "authority", "pond").identity(node="pi", role="node")

    async def run() -> None:
        driver = WorkerDriver(spec, Around(), member=member, cache=tmp_path, child_module="none")
        trainer = driver._trainer
        trainer._renew_shared(SIZE)
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def learn(*_: Any, **__: Any) -> TrainResult:
            # As the trainer's process does it.
            after = trainer.shared.model + np.float32(0.25)
            begun.set()
            await may_end.wait()
            np.subtract(after, trainer.shared.model, out=trainer.shared.update)
            return TrainResult(examples=64, loss_sum=1.0, seconds=1.0, finite=True, held=64)

        host, role = RoleHost("worker", driver.perform, send=_send_nothing), Listening()
        host.start(role)
        model = np.arange(SIZE, dtype=np.float32)
        train = Train(lease=1, epoch=0, batches=(0,), version=1, examples=64, tensors={"model": model})
        with (
            mock.patch.object(trainer, "learn", learn),
            mock.patch.object(TrainerHost, "alive", mock.PropertyMock(return_value=True)),
        ):
            try:
                await driver.perform(host, train)
                await begun.wait()
                if (memory := driver.model_buffer(model.nbytes)) is not None:
                    np.frombuffer(memory, dtype=np.float32)[:] = -(2.0**38)
                may_end.set()
                trained = await role.trained
                assert trained.tensors["delta"].tolist() == [0.25] * SIZE
            finally:
                await host.stop()
                await driver.stop()

    asyncio.run(asyncio.wait_for(run(), 30))
