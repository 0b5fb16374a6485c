"""``shoal.fit`` and ``shoal.submit`` as a person's program calls them, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit import HERE, Site, cluster_in, run

import shoal
from shoal.errors import Misuse, Refused, Unreachable
from shoal.trainer.find import find_task
from shoal.wire import tensors

ROOT = HERE.parents[1]
CLOUDS = (HERE / "clouds_task.py").read_text()
FAULTY = (HERE / "faulty_task.py").read_text()


@contextlib.contextmanager
def running(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A person's script with this text, ended with all it started."""
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-W", "error", "script.py"]
    place = {"cwd": folder, "env": {**os.environ, "TMPDIR": str(folder), "SHOAL_HOME": str(folder / "home")}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes, **place) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def said(process: subprocess.Popen[str], timeout_s: float = 300) -> tuple[list[str], str]:
    output, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors
    return output.splitlines(), errors


WITH_CALLBACKS = """
import importlib.util, json
from shoal.callbacks import CSV, TensorBoard

class Notes(shoal.Callback):
    def __init__(self):
        self.told = []
    def on_start(self, job):
        self.told.append(["start", job.status().job == job.id])
    def on_evaluation(self, row):
        self.told.append(["row", row.version])
        if row.epoch >= 3:
            return shoal.STOP
    def on_end(self, result):
        self.told.append(["end", result.state])

notes = Notes()
boards = [TensorBoard("board")] if importlib.util.find_spec("tensorboard") else []
heard = [notes, CSV("log.csv"), *boards]
result = shoal.fit(Clouds(pause_s=0.05), workers=2, until=shoal.seconds(600), callbacks=heard)
history = result.history
print(json.dumps({
    "job": result.job, "state": result.state, "reason": result.reason,
    "told": notes.told, "versions": history["version"], "loss": history["loss"],
    "last": history[-1].version, "model": type(result.model()).__name__,
    "rows": [row.version for row in history],
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_callbacks_hear_every_evaluation_and_may_stop_the_job(tmp_path: Path) -> None:
    with running(tmp_path, CLOUDS + WITH_CALLBACKS) as process:
        output, errors = said(process)
    told = json.loads(output[-1])
    assert told["state"] == "stopped"
    assert told["reason"] == "stopped by Notes (by operator)"
    assert told["model"] == "Sequential"
    assert told["told"][0] == ["start", True]
    assert told["told"][1:-1] == [["row", version] for version in told["versions"]]
    assert told["told"][-1] == ["end", "stopped"]
    assert len(told["versions"]) >= 3
    assert told["rows"] == sorted(told["versions"])
    assert told["last"] == told["versions"][-1]
    assert told["loss"][-1] < told["loss"][0]
    # Without a terminal: one line an evaluation, on standard error.
    assert sum("version" in line for line in errors.splitlines()) == len(told["versions"])
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["version"]) for row in rows] == told["versions"]
    assert [float(row["loss"]) for row in rows] == pytest.approx(told["loss"])
    if importlib.util.find_spec("tensorboard"):
        assert scalars(tmp_path / "board" / told["job"], "loss") == pytest.approx(
            dict(zip(told["versions"], told["loss"], strict=True))
        )


def scalars(folder: Path, tag: str) -> dict[int, float]:
    """What TensorBoard reads of a folder, by step, in a process of its own: its packages warn as they are imported."""
    code = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator(sys.argv[1]); found.Reload()\n"
        "print(json.dumps({event.step: event.value for event in found.Scalars(sys.argv[2])}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder, tag], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return {int(step): value for step, value in json.loads(done.stdout.splitlines()[-1]).items()}


UNTIL_STOPPED = """
import json
class Ready(shoal.Callback):
    def on_evaluation(self, row):
        print("up", flush=True)
result = shoal.fit(Clouds(pause_s=0.05), workers=2, until=shoal.seconds(600), callbacks=[Ready()], progress=False)
told = {"state": result.state, "reason": result.reason, "version": result.version}
print(json.dumps({**told, "model": result.path.stat().st_size}))
"""


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_ctrl_c_stops_the_job_and_gives_its_model(tmp_path: Path) -> None:
    with running(tmp_path, CLOUDS + UNTIL_STOPPED) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        # To the whole group, as a terminal does.
        os.killpg(process.pid, signal.SIGINT)
        output, errors = said(process)
    told = json.loads(output[-1])
    assert told["state"] == "stopped"
    assert told["reason"] == "stopped by Ctrl-C (by operator)"
    assert told["version"] >= 1
    assert told["model"] > 0
    assert errors == ""


TWICE = """
class Slow(shoal.Callback):
    is_interrupted = False
    def on_evaluation(self, row):
        try:
            self.wait("second" if self.is_interrupted else "first")
        finally:
            self.is_interrupted = True
    def on_progress(self, view):
        if self.is_interrupted:
            self.wait("second")
    def wait(self, text):
        print(text, flush=True)
        time.sleep(100)
    def on_end(self, result):
        print("left", result.path, flush=True)
try:
    shoal.fit(Clouds(pause_s=0.05), workers=1, until=shoal.seconds(600), callbacks=[Slow()], progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    with running(tmp_path, CLOUDS + TWICE) as process:
        assert process.stdout is not None
        for word in ("first", "second"):
            assert process.stdout.readline() == f"{word}\n"
            process.send_signal(signal.SIGINT)
        output, _ = said(process)
    assert output == ["left None", "interrupted"]


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- program:.*?-->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert found
    with running(tmp_path, found[1]) as process:
        output, _ = said(process, timeout_s=220)
    assert output[0].startswith(("finished ", "stopped "))
    assert output[1] == "torch.Size([1, 3])"
    assert (tmp_path / "clouds.csv").read_text().startswith("version,epoch,seconds,examples,loss,accuracy")
    assert (tmp_path / "clouds.safetensors").is_file()


FAILING = """
import json
from shoal.errors import JobFailed
try:
    shoal.fit(Faulty(poison=7), workers=1, progress=False)
except JobFailed as error:
    print(json.dumps({"job": error.job, "logs": error.logs, "text": str(error)}))
"""


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_logs_of_a_job_that_fails_are_kept(tmp_path: Path) -> None:
    with running(tmp_path, FAULTY + FAILING) as process:
        output, _ = said(process)
    told = json.loads(output[-1])
    logs = Path(told["logs"])
    assert logs == tmp_path / "home" / "logs" / told["job"]
    assert told["job"] in told["text"]
    assert str(logs) in told["text"]
    assert {"manager.log", "device-1.log", "events.txt", "tracebacks.txt"} <= {each.name for each in logs.iterdir()}
    assert "example 7 is poison" in (logs / "tracebacks.txt").read_text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_first_model_is_that_of_a_file_a_job_or_a_version(tmp_path: Path) -> None:
    async def first(site: Site, start: str | Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        ready = await site.operator.prepare(*find_task(str(HERE / "clouds_task.py")), start=start)
        return dict(tensors.read(Path(ready.prepared.model), mmap=False)[0]), ready.notes

    async def story() -> None:
        async with cluster_in(tmp_path, workers=1, options=()) as site:
            job = await site.submit_task(HERE / "clouds_task.py", until={"epochs": 3})
            await site.ended(job)
            await site.operator.publish(job)
            (published,) = (await site.operator.versions(job)).versions
            wanted = await site.model(job)
            file = tmp_path / f"{job}.safetensors"
            assert file.is_file()
            for start in (file, job, f"{job}@{published.version}"):
                found, notes = await first(site, start)
                assert found.keys() == wanted.keys()
                for name, array in wanted.items():
                    np.testing.assert_array_equal(found[name], array, err_msg=f"{start}: {name}")
            # The same values, from wherever they come, are prepared once: only the first file was told of.
            assert notes in ((), ("started from 4 tensors of the file",))
            assert not np.array_equal((await first(site, ""))[0]["0.weight"], wanted["0.weight"])
            for start, error, words in (
                ("absent-0000", Misuse, "neither a file, a folder nor a job"),
                (f"{job}@best", Misuse, "JOB@VERSION"),
                (f"{job}@999", Refused, "version 999"),
            ):
                with pytest.raises(error, match=words):
                    await first(site, start)

    asyncio.run(asyncio.wait_for(story(), 570))


def test_a_file_is_loaded_into_the_model_of_its_task(tmp_path: Path) -> None:
    from clouds_task import Clouds

    values = {name: array.detach().numpy() for name, array in Clouds().model().state_dict().items()}
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        tensors.write(file, values, {})
    loaded = shoal.load(path, Clouds())
    assert not loaded.training
    for name, tensor in loaded.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), values[name])
    with pytest.raises(Misuse, match="there is no file"):
        shoal.load(tmp_path / "absent", Clouds())
    with path.open("wb") as file:
        tensors.write(file, {"other": np.ones(2, np.float32)}, {})
    with pytest.raises(Misuse, match="does not hold a model of Clouds"):
        shoal.load(path, Clouds())


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_a_handle_follows_and_stops_a_job_of_a_running_cluster(tmp_path: Path) -> None:
    from clouds_task import Clouds

    def program(home: Path) -> None:
        assert shoal.jobs(cluster=home) == []
        plan = shoal.Plan(until=shoal.seconds(600))
        job = shoal.submit(Clouds(pause_s=0.02), plan=plan, cluster=home, progress=False)
        assert [each.id for each in shoal.jobs(cluster=home)] == [job.id]
        assert job.status().state in ("queued", "running")
        with pytest.raises(TimeoutError, match="goes on"):
            job.wait(0.0, progress=False)
        kinds = []
        for event in job.events():
            kinds.append(event.kind)
            if event.kind == "job.evaluated" and kinds.count("job.evaluated") == 2:
                job.stop("seen enough")
        assert kinds.count("job.evaluated") >= 2
        assert job.status().state == "stopped"
        found = shoal.job(job.id[:-1], cluster=home, task=Clouds())
        result = found.result(save=tmp_path / "model.safetensors")
        assert (result.state, result.reason) == ("stopped", "seen enough (by operator)")
        assert result.path == tmp_path / "model.safetensors"
        assert len(found.history) == len(result.history) >= 2
        assert type(result.model()).__name__ == "Sequential"
        with pytest.raises(Misuse, match="there is no job 'absent'"):
            shoal.job("absent", cluster=home)

    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=()) as site:
            await asyncio.to_thread(program, site.cluster.home)

    run(story())


def test_submit_says_that_there_is_no_cluster(tmp_path: Path) -> None:
    from clouds_task import Clouds

    with pytest.raises(Misuse, match="shoal up"):
        shoal.submit(Clouds(), cluster=tmp_path)


def test_submit_says_that_a_cluster_does_not_run(tmp_path: Path) -> None:
    from clouds_task import Clouds

    async def made() -> None:
        async with cluster_in(tmp_path, workers=0):
            pass

    run(made())
    with pytest.raises(Unreachable):
        shoal.jobs(cluster=tmp_path / "home")
    with pytest.raises(Unreachable):
        shoal.submit(Clouds(), cluster=tmp_path / "home", progress=False)
