"""An algorithm of the researcher's own on real leaders: asked in a confined process, once per version."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from kit import HERE, Site, cluster_in, run
from safetensors.numpy import load_file

from shoal.errors import Misuse
from shoal.learning.algorithm import UpdateFacts, WaitingDevice
from shoal.learning.algorithm_call import ChooseQuestion, FinishQuestion, MergeQuestion
from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.trainer import algorithm_host
from shoal.trainer.algorithm_host import AlgorithmHost
from shoal.trainer.bundle import pack
from shoal.trainer.protocol import TrainerError

pytestmark = pytest.mark.timeout(240)

BATCHES = 240
SLOW_S = 0.1

RULES = '''
import os, time
import numpy as np
import shoal


class Counting(shoal.Algorithm):
    """The weighted mean, as without an algorithm; and how many versions it made."""

    def merge(self, updates, facts, state):
        examples = np.array([each.examples for each in facts], dtype=np.float64)
        made = state.get("made", np.zeros(1)) + 1
        return examples @ updates / examples.sum(), {"made": made, "shape": np.full((2, 3), made[0])}

    def choose(self, candidates, count, rng):
        return sorted(each.node for each in candidates)[:count]


class Doubling(shoal.Algorithm):
    def finish(self, mean, state):
        return {name: 2 * array for name, array in mean.items()}, {"asked": state.get("asked", np.zeros(1)) + 1}


class Broken(shoal.Algorithm):
    def merge(self, updates, facts, state):
        raise ValueError(f"of {len(updates)} rows")


class Endless(shoal.Algorithm):
    def merge(self, updates, facts, state):
        time.sleep(3600)


class Dying(shoal.Algorithm):
    def merge(self, updates, facts, state):
        os._exit(3)


class Nosy(shoal.Algorithm):
    """Its state says what the process may do."""

    def merge(self, updates, facts, state):
        import socket

        may = {"root": float(os.geteuid() == 0)}
        try:
            socket.create_connection(("127.0.0.1", int(os.environ["NOSY_PORT"])), timeout=1)
            may["network"] = 1.0
        except OSError:
            may["network"] = 0.0
        try:
            open(os.environ["NOSY_FILE"]).read()
            may["file"] = 1.0
        except OSError:
            may["file"] = 0.0
        return updates[0], {name: np.array([value]) for name, value in may.items()}
'''
TORCHY = """
import torch
import shoal


class Heavy(shoal.Algorithm):
    def finish(self, mean, state):
        return mean, state
"""

LAYOUT = Layout.of([("weight", (2, 3), "parameter"), ("bias", (2,), "parameter")])
ROWS = np.arange(16, dtype=np.float32).reshape(2, 8)
FACTS = (UpdateFacts(node="a", examples=1, loss=0.5), UpdateFacts(node="b", examples=3, loss=float("nan")))
MERGE = MergeQuestion(updates=ROWS, facts=FACTS)


def host_of(folder: Path, name: str) -> AlgorithmHost:
    (folder / "rules.py").write_text(RULES)
    (folder / "heavy.py").write_text(TORCHY)
    plan = Plan(algorithm=name if ":" in name else f"rules:{name}")
    return AlgorithmHost(plan, pack(folder, "rules:Counting"), LAYOUT)


def test_a_process_answers_and_a_killed_one_is_started_again(tmp_path: Path) -> None:
    async def story() -> None:
        host = host_of(tmp_path, "Counting")
        try:
            assert await host.hooks() == {"merge", "choose"}
            first = await host.ask(MERGE, {})
            assert first.change is not None
            np.testing.assert_allclose(first.change, 0.25 * ROWS[0] + 0.75 * ROWS[1])
            assert first.state["made"].tolist() == [1]
            assert first.state["shape"].tolist() == [[1] * 3] * 2
            assert host.pid is not None
            os.kill(host.pid, signal.SIGKILL)
            # A question changes nothing in the process, so it is put to the next one.
            second = await host.ask(MERGE, first.state)
            assert second.state["made"].tolist() == [2]
            candidates = tuple(WaitingDevice(node=node) for node in ("c", "b", "a"))
            answer = await host.ask(ChooseQuestion(candidates=candidates, count=2, seed=1, version=3), second.state)
            assert answer.chosen == ("a", "b")
            pid = host.pid
        finally:
            await host.close()
        assert pid is not None
        assert not psutil.pid_exists(pid)

    asyncio.run(story())


def test_a_mean_is_finished_tensor_by_tensor(tmp_path: Path) -> None:
    async def story() -> None:
        host = host_of(tmp_path, "Doubling")
        try:
            answer = await host.ask(FinishQuestion(mean=ROWS[1]), {})
            assert answer.change is not None
            np.testing.assert_allclose(answer.change, 2 * ROWS[1])
        finally:
            await host.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Broken", r"Broken.merge raised ValueError: of 2 rows"),
        ("Endless", r"gave no answer in 2 s and was ended.*Endless.merge"),
        ("Dying", r"ended by itself with code 3"),
        ("heavy:Heavy", r"heavy.py imports PyTorch.*a file of its own"),
        ("Missing", r"defines no algorithm Missing"),
    ],
)
def test_an_algorithm_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setattr(algorithm_host, "ANSWER_TIMEOUT_S", 2.0)

    async def story() -> None:
        host = host_of(tmp_path, name)
        try:
            with pytest.raises(TrainerError, match=reason):
                await host.ask(MERGE, {})
        finally:
            await host.close()

    asyncio.run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="only a process that starts as root can become another user")
def test_the_process_is_confined_as_a_trainer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        secret = tmp_path / "secret"
        secret.write_text("key")
        secret.chmod(0o600)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        monkeypatch.setenv("NOSY_PORT", str(server.sockets[0].getsockname()[1]))
        monkeypatch.setenv("NOSY_FILE", str(secret))
        folder = tmp_path / "code"
        folder.mkdir()
        host = host_of(folder, "Nosy")
        try:
            may = (await host.ask(MERGE, {})).state
            assert {name: float(array[0]) for name, array in may.items()} == {"root": 0.0, "network": 0.0, "file": 0.0}
        finally:
            await host.close()
            server.close()

    asyncio.run(story())


async def submitted(site: Site, folder: Path, algorithm: str, **plan: object) -> str:
    """Start a tally whose leaders ask an algorithm."""
    folder.mkdir()
    (folder / "task.py").write_text("")
    (folder / "rules.py").write_text(RULES)
    bundle = pack(folder, "task:Tally")
    return await site.submit_tally(batches=BATCHES, bundle=bundle, algorithm=f"rules:{algorithm}", **plan)


@pytest.mark.gate("an algorithm on a leader that is killed")
def test_versions_and_state_are_whole_when_leaders_die(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path / "site", workers=3) as site:
            site.may_lose_the_manager = True
            site.pace(SLOW_S)
            job = await submitted(site, tmp_path / "code", "Counting", epochs=2, workers_min=2, cohort=2)
            await site.mid_epoch(job)
            await site.operator.transfer(job, "device-1")
            progress = await site.progress(job, "a version of term 2", lambda p: p.term == 2 and p.durable_version > 5)
            asked = [each for each in site.trainers("device-1") if "algorithm_child" in " ".join(each.cmdline())]
            assert len(asked) == 1
            asked[0].kill()
            await site.progress(job, "another version", lambda p: p.durable_version > progress.durable_version + 3)
            await site.kill(site.cluster.agents.pop("device-1"))
            await site.progress(job, "a version of term 3", lambda p: p.term == 3 and p.version > 0)
            await site.kill_manager()
            await site.cluster.start_manager()
            site.pace(0.0)
            await site.ended(job)
            rows = await site.tallied_once(job, batches=BATCHES, epochs=2)
            newest = load_file(site.checkpoints(job)[-1])
            # Each version was made once by the algorithm, and nothing of its state is lost or counted twice.
            assert newest["shoal.algorithm.made"].tolist() == [max(row.version for row in rows)]
            assert newest["shoal.algorithm.shape"].shape == (2, 3)

    run(story())


def test_a_job_whose_algorithm_fails_ends_with_its_traceback(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path / "site", workers=2) as site:
            job = await submitted(site, tmp_path / "code", "Broken", workers_min=2)
            view = await site.ended(job, state="failed")
            assert view.progress is not None
            assert "Broken.merge raised ValueError: of" in view.progress.reason
            await site.event(job, "algorithm.failed", "Broken.merge")

            async def told() -> list[str]:
                with site.registry() as registry:
                    return [event.traceback for event in registry.tracebacks(job)]

            (traceback,) = await site.until("its traceback is on record", told)
            assert "rules.py" in traceback

    run(story())


def test_a_plan_that_does_not_suit_its_algorithm_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path / "site", workers=1) as site:
            with pytest.raises(Misuse, match="merge sees every update of a version"):
                await submitted(site, tmp_path / "code", "Counting", topology="tree", cohort=2)
            with pytest.raises(Misuse, match=r"rules\.py defines no algorithm Missing"):
                await submitted(site, tmp_path / "other", "Missing")

    run(story())


@pytest.mark.timeout(400)
def test_control_vectors_are_whole_when_the_leader_dies(tmp_path: Path) -> None:
    """SCAFFOLD's invariant: the shared control vector is the mean of the devices' own. It breaks if a device counts a
    lease whose version was lost with its leader, or a version has one that its device forgot."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=3, options=()) as site:
            site.may_lose_the_manager = True
            plan = {
                "data": "local",
                "workers_min": 3,
                "batch_size": 10,
                "lease_batches": 2,
                "epoch_leases": 30,
                "learning_rate": 0.05,
                "momentum": 0.0,
                "weights": "device",
                "accept_unusual": True,
                "until": {"epochs": 12},
                # Versions come much faster: a leader that dies takes some with it.
                "checkpoint_every_s": 3.0,
            }
            job = await site.submit_task(HERE / "scaffold_task.py", **plan)
            lost = 0
            for epoch in (2, 5):
                told = await site.progress(job, f"{epoch} epochs", lambda p, least=epoch: p.epoch >= least)
                lost += told.version - told.durable_version
                await site.kill_manager()
                await site.cluster.start_manager()
            await site.ended(job)
            shared = (await site.model(job))["shared"]
            own = []
            for name in site.cluster.agents:
                file = site.cluster.agent_home(name) / "node" / "own" / f"{job}.safetensors"
                own.append(load_file(file)["mine"])
            assert np.abs(shared).max() > 0.01
            np.testing.assert_allclose(shared, np.mean(own, axis=0), atol=2e-3)
            assert lost > 0, "no version was lost: nothing was tried"
            assert site.evaluations(job)[-1].accuracy > 0.9

    run(story())
