"""Preparing a task as a real process: what it writes is what a trainer reads."""

import asyncio
import json
import subprocess
import sys

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.trainer.bundle import pack, unpack
from shoal.trainer.host import TrainerHost, TrainerSettings
from shoal.trainer.package import make_ready
from shoal.trainer.prepared_job import LAYOUT_NOTE, PreparedJob
from shoal.trainer.shards import Examples, as_pair
from shoal.wire import tensors

TASK = """
import numpy as np
import torch
from torch import nn
from shoal.task import Task
print("a word at import")

class Sample(Task):
    def __init__(self, width=4):
        self.width = width

    def model(self):
        return nn.Sequential(nn.Linear(3, self.width), nn.BatchNorm1d(self.width), nn.Linear(self.width, 2))

    def examples(self, split):
        count = 50 if split == "train" else 20
        x = np.arange(count * 3, dtype=np.float64).reshape(count, 3)
        y = np.arange(count) % 2
        if split == "train":
            return x, y
        return torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
"""


@pytest.fixture
def prepare(tmp_path):
    def run(source, *options, entry="task:Sample", arguments="{}"):
        file = tmp_path / "task.py"
        file.write_text(source)
        bundle = tmp_path / "bundle.zip"
        bundle.write_bytes(pack(file, entry))
        command = [sys.executable, "-P", "-m", "shoal.trainer.prepare_child", "--bundle", bundle, "--entry", entry]
        command += ["--arguments", arguments, "--out", tmp_path / "out", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def test_a_task_is_prepared_cached_and_trained(prepare, tmp_path):
    code, lines, log = prepare(TASK, "--seed", "3", arguments='{"width": 5}')
    assert code == 0
    assert "a word at import" in log
    assert {"step": "write", "split": "train", "examples": 50, "of": 50} in lines
    prepared = PreparedJob.from_plain(lines[-1]["prepared"])
    assert (prepared.train.examples, prepared.test.examples) == (50, 20)
    # 3x5 + 5, two of 5 for BatchNorm, 5x2 + 2; then its two running statistics.
    assert (prepared.layout.parameters_size, prepared.layout.size) == (42, 52)
    assert lines[-1]["prepared"]["size"] == 52

    arrays, notes = tensors.read(tmp_path / prepared.model)
    assert notes[LAYOUT_NOTE] == prepared.layout.to_json()
    assert arrays["1.running_var"].tolist() == [1] * 5
    assert np.abs(arrays["0.weight"]).max() > 0
    x, y = as_pair(Examples(prepared.paths(prepared.test)).slice(0, 3))
    assert (x.dtype, x.tolist(), y.tolist()) == (np.float32, [[0, 1, 2], [3, 4, 5], [6, 7, 8]], [0, 1, 0])

    code, again, _ = prepare(TASK, "--seed", "3", arguments='{"width": 5}')
    assert again[0] == {"step": "cached"}
    assert again[-1] == lines[-1]
    (tmp_path / "out" / "shards" / prepared.train.shards[0].sha256).unlink()
    code, repaired, _ = prepare(TASK, "--seed", "3", arguments='{"width": 5}')
    assert repaired[0] == {"step": "model"}
    assert repaired[-1] == lines[-1]

    unpack((tmp_path / "bundle.zip").read_bytes(), tmp_path / "unpacked")
    settings = TrainerSettings(
        bundle_dir=str(tmp_path / "unpacked"),
        entry="task:Sample",
        arguments={"width": 5},
        train=prepared.paths(prepared.train),
        test=prepared.paths(prepared.test),
        layout=prepared.layout,
        seed=3,
        batch_size=16,
        learning_rate=0.001,
    )

    async def story():
        host = TrainerHost()
        await host.start(settings)
        try:
            for name, view in prepared.layout.views(host.shared.model).items():
                view[...] = arrays[name]
            assert (await host.train(0, [0, 1, 2, 3])).examples == 50
            assert (await host.evaluate(0, 20)).examples == 20
        finally:
            await host.stop()

    asyncio.run(asyncio.wait_for(story(), 300))


@pytest.mark.parametrize(
    ("old", "new", "reason", "where"),
    [
        (
            "count = 50 if",
            "count = 1 / 0 if",
            "ZeroDivisionError: division by zero",
            "Sample.examples (task.py:16)",
        ),
        ("return x, y", "return x, y[1:]", "x has 50 examples and y has 49: they must pair up", None),
        ("return x, y", "return x", "these examples have the columns x, not x and y", None),
        ("return x, y", "return x, y, y", "examples() gave 3 things; it gives the pair (x, y)", None),
        ("return x, y", "return 7", "examples() gave int; it gives a pair (x, y), a dict", None),
    ],
)
def test_failures_are_told_in_the_last_line(prepare, old, new, reason, where):
    code, lines, log = prepare(TASK.replace(old, new))
    assert code == 1
    failed = lines[-1]["failed"]
    assert failed["reason"].startswith(reason)
    assert where is None or failed["where"] == where
    assert "Traceback" in log


# One batch is tried -------------------------------------------------------------------------------------

HOOK = """
    def HOOK(self, output, y):
        BODY
"""
BODY_LINE = 1 + len(TASK.splitlines()) + 2


def with_hook(hook, body):
    return TASK + HOOK.replace("HOOK", hook).replace("BODY", body)


@pytest.mark.parametrize(
    ("hook", "body", "reason"),
    [
        ("loss", 'raise ValueError("boom")', "ValueError: boom"),
        ("loss", "return output", "Sample.loss gave [50, 2]; it must give one number"),
        ("loss", "return output.detach().mean()", "a number that does not depend on the model's parameters"),
        ("loss", "return (output * float('nan')).mean()", "gave nan for the first batch"),
        ("correct", "return y.missing", "AttributeError"),
        ("correct", "return 3 * len(y)", "Sample.correct gave 60 of 20 examples"),
    ],
)
def test_a_mistake_in_the_task_is_found_before_anything_is_sent(tmp_path, hook, body, reason):
    file = tmp_path / "task.py"
    file.write_text(with_hook(hook, body))
    told = []
    with pytest.raises(Misuse) as refused:
        asyncio.run(make_ready(file, "task:Sample", out=tmp_path / "out", on_progress=told.append))
    words = str(refused.value)
    assert words.startswith("one batch was tried here, before anything was sent, and failed: ")
    assert reason in words
    line = BODY_LINE if "Error" in reason else BODY_LINE - 1
    assert f"Sample.{hook} (task.py:{line})" in words
    assert "trial.py" not in words
    assert told[-1] == "trying one batch"
    # Nothing is taken for prepared.
    assert not list((tmp_path / "out").glob("*/prepared.json"))


@pytest.mark.parametrize("held_out", [True, False])
def test_where_devices_have_the_examples_those_held_out_are_tried(prepare, held_out):
    source = with_hook("loss", 'raise ValueError("boom")')
    if not held_out:
        source = source.replace("count = 50 if", "if split == 'test': return None\n        count = 50 if")
    code, lines, _ = prepare(source, "--data", "local")
    if held_out:
        assert code == 1
        assert lines[-1]["failed"]["reason"] == "ValueError: boom"
    else:
        assert code == 0
        reason = "the devices have the examples, and none are held out here"
        assert {"step": "untried", "reason": reason} in lines


def test_a_method_that_nobody_calls_is_told_with_its_class(tmp_path):
    file = tmp_path / "task.py"
    file.write_text(with_hook("lost", "return 0"))
    with pytest.raises(Misuse, match=r"Sample defines lost, .* did you mean loss\?.*, at <module> \(task.py:8\)"):
        asyncio.run(make_ready(file, "task:Sample", out=tmp_path / "out"))
