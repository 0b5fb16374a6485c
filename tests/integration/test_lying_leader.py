"""A leader that lies to real agents over real sockets gets nothing: no update, and no sum that it should not have.

The leader's side is a process that speaks the protocol and says what no leader of ours would (``lying_leader``). Agents
are as they are deployed. What the leader heard is in its diary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dumping_trainer
import numpy as np
import pytest
from kit import Site, cluster_in, run
from own_tally_trainer import TURNS
from readings_task import readings
from test_local_data import READINGS
from test_local_data import _start as start_with_examples

from shoal.runtime.local import LocalCluster
from testbed.echo_job import echo_job

LEADS_HERE = ("--lead", "here")
OWN_TALLY = ("--child-module", "own_tally_trainer")
DEVICES, VALUES = 4, 200

Line = dict[str, Any]


class Diary:
    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        """All whole lines."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def heard(self, kind: str) -> list[Line]:
        return [line for line in self.lines() if line.get("heard") == kind]

    def of(self, what: str) -> list[Line]:
        """The lines that say this."""
        return [line for line in self.lines() if what in line]

    def refusals(self) -> str:
        return " ".join(line["reason"] for line in self.heard("SealRefused"))

    def most(self, what: str) -> int:
        return max((line[what] for line in self.lines() if what in line), default=0)


@contextlib.contextmanager
def led_by(lie: str, diary: Path) -> Iterator[None]:
    """The manager of a cluster that starts meanwhile has a leader that lies."""
    spawn = LocalCluster._spawn

    async def spawned(self: LocalCluster, module: str, *arguments: str, **options: Any) -> Any:
        if module == "shoal.runtime.manager_main":
            return await spawn(self, "lying_leader", lie, str(diary), *arguments, **options)
        return await spawn(self, module, *arguments, **options)

    with mock.patch.object(LocalCluster, "_spawn", spawned):
        yield


async def _submitted(site: Site, directory: Path, codec: str, trust: str) -> str:
    folder = directory / "job"
    folder.mkdir()
    job = echo_job(folder, values=VALUES, batches=60)
    job = dataclasses.replace(job, name="tally", arguments={"pace": str(directory / "pace")})
    plan = {
        "trust": trust,
        "data": "local",
        "workers_min": DEVICES,
        "epoch_leases": TURNS,
        "codec": codec,
        "momentum": 0.0,
        "until": {"epochs": 50},
    }
    return await site.operator.submit(job, plan=plan)


def play(
    tmp_path: Path,
    lie: str,
    until: Callable[[Diary], bool],
    *,
    codec: str = "dense",
    least: int = DEVICES,
    is_helped: bool = False,
) -> Diary:
    """Have a job led by this liar until its diary says so. ``is_helped``: one more agent opens its sums."""
    diary = Diary(tmp_path / "diary")

    async def story() -> None:
        with led_by(lie, tmp_path / "diary"):
            workers = DEVICES + is_helped
            async with cluster_in(tmp_path, workers=workers, options=OWN_TALLY, manager_options=LEADS_HERE) as site:
                how = f"helper={max(site.cluster.agents)}" if is_helped else "0%, 0%"
                await _submitted(site, tmp_path, codec, f"sealed({least}, {how})")

                async def is_seen() -> bool | None:
                    return until(diary) or None

                await site.until(f"what comes of {lie}", is_seen)

    run(story())
    return diary


def play_on_own_data(
    tmp_path: Path,
    lie: str,
    trust: str,
    until: Callable[[Diary, str], bool],
    *,
    devices: int = 4,
    helpers: int = 0,
    task: dict[str, Any] | None = None,
) -> Diary:
    """Have a job led by this liar with real trainers. Each learns from its device's file and writes down its updates.
    ``until`` is given the diary and the logs of the agents."""
    diary = Diary(tmp_path / "diary")

    async def story() -> None:
        tmp_path.chmod(0o755)
        with led_by(lie, tmp_path / "diary"):
            options = ("--child-module", "dumping_trainer")
            async with cluster_in(tmp_path, workers=0, options=options, manager_options=LEADS_HERE) as site:
                for number in range(1, devices + helpers + 1):
                    await start_with_examples(
                        site, f"device-{number}", tmp_path / f"own-{number}", readings(100, seed=number)
                    )
                    (tmp_path / f"own-{number}").chmod(0o777)
                plan: dict[str, Any] = {"workers_min": devices, "momentum": 0.0, "until": {"epochs": 30}}
                await site.submit_task(READINGS, kwargs=task, trust=trust, pace="sync", **plan)

                async def is_seen() -> bool | None:
                    logs = "".join(path.read_text() for path in sorted(site.cluster.home.glob("device-*.log")))
                    return until(diary, logs) or None

                await site.until(f"what comes of {lie}", is_seen)

    run(story())
    return diary


def updates_of(tmp_path: Path, device: str) -> np.ndarray:
    """Every update that this device's trainer made, one a row."""
    text = (tmp_path / f"own-{device.rpartition('-')[2]}" / dumping_trainer.FILE).read_text()
    return np.array([json.loads(line) for line in text.splitlines()])


def nearest(found: Any, updates: np.ndarray) -> float:
    """Return the leader's error against the nearest of these updates, as a share of that one's largest value."""
    # Under a model of the liar's making a device may have nothing to change.
    return float(min(np.abs(np.array(found) - row).max() / max(np.abs(row).max(), 1e-30) for row in updates))


def test_it_splits_views_and_what_it_works_out_is_noise(tmp_path: Path) -> None:
    """Form 1 gave the edges of a device away with its agreement: then this leader had the update of one device."""
    diary = play_on_own_data(
        tmp_path,
        "SplitSets",
        "sealed(3, 0%, 30%)",
        lambda diary, _: bool(diary.of("found")) and diary.refusals().count("shows devices different sets") >= 3,
        devices=8,
    )
    (worked_out, *_) = diary.of("found")
    # It came as far as the mask of the device's own, by the shares of five who were told the same.
    assert nearest(worked_out["found"], updates_of(tmp_path, worked_out["of"])) > 1
    assert worked_out["edges"] == 0
    assert not any(line["edges"] for line in diary.heard("Agreed"))


@pytest.mark.parametrize(
    ("trust", "helpers"), [("sealed(4, 0%, 0%)", 0), ("sealed(4, helper=device-5)", 1)], ids=["devices", "helper"]
)
def test_it_lends_at_another_rate_and_no_sum_is_the_update_of_one(tmp_path: Path, trust: str, helpers: int) -> None:
    def is_over(diary: Diary, logs: str) -> bool:
        return bool(diary.of("total")) or logs.count("has a learning rate of 1e-30") >= 6

    diary = play_on_own_data(tmp_path, "OneRate", trust, is_over, helpers=helpers)
    for line in diary.of("total"):
        found = np.array(line["total"]) / line["sum_of"]["device-1"]
        assert nearest(found, updates_of(tmp_path, "device-1")) > 0.1
    assert diary.most("opened") == diary.most("version") == 0


@pytest.mark.parametrize("lie", ["LossOracle", "LossOfALease"])
def test_it_asks_for_losses_and_hears_none(tmp_path: Path, lie: str) -> None:
    """With the loss of one example under four models of its own making, it would have a row of a device's file."""

    def is_over(diary: Diary, logs: str) -> bool:
        return bool(diary.of("row")) or logs.count("lease.declined: ") >= 3

    diary = play_on_own_data(tmp_path, lie, "sealed(4, 0%, 0%)", is_over)
    rows = np.loadtxt(tmp_path / "own-1" / "readings.csv", delimiter=",")
    for line in diary.of("row"):
        assert np.abs(rows - np.array(line["row"])).sum(axis=1).min() > 1
    # Neither the loss, nor fresh examples and how the model did on them, nor what the task logged, nor labels.
    assert all(line["clear"] == [0.0, 0, 0, 0] and line["labels"] == 0 for line in diary.of("clear"))
    assert diary.of("clear") if lie == "LossOfALease" else not diary.of("clear")


def test_it_sends_a_second_model_while_devices_train_and_has_no_update(tmp_path: Path) -> None:
    def is_over(diary: Diary, _: str) -> bool:
        return len(diary.of("found")) >= 2 or diary.most("void") >= 2

    # So large that it is received where the trainer reads it, and so slow that the second one comes while it trains.
    task = {"pause_s": 1.0, "hidden": 4000}
    diary = play_on_own_data(tmp_path, "SecondModel", "sealed(4, 0%, 0%)", is_over, task=task)
    assert all(nearest(line["found"], updates_of(tmp_path, "device-1")) > 0.1 for line in diary.of("found"))


def test_it_swaps_a_key_and_no_device_uploads(tmp_path: Path) -> None:
    diary = play(tmp_path, "OtherKey", lambda diary: len(diary.heard("SealRefused")) >= DEVICES)
    assert "does not hold" in diary.refusals() or "does not have this device's key" in diary.refusals()
    assert not diary.heard("Update")
    assert diary.most("version") == 0


def test_it_names_a_device_alive_and_lost_and_gets_no_edge(tmp_path: Path) -> None:
    """With both, masks of that device would be known, and its update with them."""
    diary = play(tmp_path, "AliveAndLost", lambda diary: len(diary.heard("SealRefused")) >= 2 * DEVICES)
    assert "another set of members than the one that this device agreed to" in diary.refusals()
    assert diary.heard("Agreed")
    assert not any(line["edges"] for line in diary.heard("Agreed"))


def test_it_replays_old_questions_and_gets_no_answer(tmp_path: Path) -> None:
    def is_enough(diary: Diary) -> bool:
        return sum("replayed" in line for line in diary.lines()) >= 3 * DEVICES

    diary = play(tmp_path, "OldQuestions", is_enough)
    newest: dict[str, int] = {}
    answers: set[tuple[str, str, int]] = set()
    for line in diary.lines():
        if "replayed" in line:
            assert line["replayed"] == ["Bind", "Agree", "Open"]
            newest[line["node"]] = line["group"]
        elif line.get("heard") in ("Update", "Agreed", "Opened"):
            assert line["group"] >= newest.get(line["node"], 0), line
            answer = (line["heard"], line["node"], line["group"])
            assert answer not in answers
            answers.add(answer)
    # The lie delays the job, and honest sums go on.
    assert diary.most("version") >= 2


@pytest.mark.parametrize(("lie", "codec"), [("TwoModels", "dense"), ("OtherPlaces", "led30%+ef")])
def test_it_gives_devices_different_models_or_places_and_has_no_sum(tmp_path: Path, lie: str, codec: str) -> None:
    """Masks of different labels do not cancel. Devices answer all questions, and it can open nothing with that."""
    diary = play(tmp_path, lie, lambda diary: diary.most("void") >= 2, codec=codec)
    assert diary.heard("Update")
    assert diary.most("opened") == diary.most("version") == 0


def test_it_asks_a_helper_twice_and_is_answered_once(tmp_path: Path) -> None:
    """The difference of two answers would be the mask of one device, and its update with it."""

    def is_enough(diary: Diary) -> bool:
        return len(diary.heard("MaskSum")) >= 4 and len(diary.heard("SealRefused")) >= 3

    # A sum of three would do, so that nothing is refused for its size.
    diary = play(tmp_path, "AsksTwice", is_enough, least=3, is_helped=True)
    answers = [line["group"] for line in diary.heard("MaskSum")]
    assert len(set(answers)) == len(answers)
    assert "a sum is opened once" in diary.refusals()


@pytest.mark.parametrize(
    ("lie", "told", "opened"),
    [
        ("AsksAboutFew", "the sum has 3 members; it must have at least 4", 0),
        ("OldEnvelopes", "did not close for this group", 1),
    ],
)
def test_it_asks_a_helper_for_what_it_should_not_have(tmp_path: Path, lie: str, told: str, opened: int) -> None:
    diary = play(tmp_path, lie, lambda diary: diary.most("void") >= 2, is_helped=True)
    assert told in diary.refusals()
    assert diary.most("version") == len(diary.heard("MaskSum")) == opened
