"""`shoal offload explain`: what it reads, what it says, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.cli.main import run

MODEL = """
from torch import nn


def model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 10))
"""

TASK = """
import numpy as np
import shoal
from torch import nn


class Small(shoal.Task):
    def model(self):
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def examples(self, split):
        return np.zeros((3, 6), np.float32), np.zeros(3, np.int64)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    return file


def test_a_model_is_explained_product_by_product(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["offload", "explain", str(model_file), "--input", "1x6x6", "--batch", "8", "--privacy", "none", "--json"]
    # Executors that take no time on a link that is not one: what is left is this device's own work.
    assert run([*words, "--gmacs", "1e9", "--mbps", "1e9", "--latency-ms", "0"]) == 0
    told = json.loads(capsys.readouterr().out)
    products = [
        (each["layer"], each["pass"], each["rows"], each["inner"], each["columns"]) for each in told["products"]
    ]
    # 8 images, 16 places and 9 values under the kernel; the images want no gradient.
    assert products == [
        ("0", "forward", 128, 9, 4),
        ("0", "weight gradient", 4, 128, 9),
        ("3", "forward", 8, 64, 10),
        ("3", "input gradient", 8, 10, 64),
        ("3", "weight gradient", 10, 8, 64),
    ]
    assert told["pool"]["executors"] == 8
    assert told["speedup"] == pytest.approx(told["home_s"] / told["best_s"])


def test_a_task_is_read_with_its_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sentences are looked for whole: the table must be wide enough wherever this runs.
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "task.py"
    file.write_text(TASK)
    assert run(["offload", "explain", str(file), "--batch", "7", "--mbps", "100"]) == 0
    said = capsys.readouterr().out
    assert "8 executors" in said
    # What the link carries less what this device takes to move it: a little below 100, the less the faster it is.
    rate = re.search(r"(\d+) Mb/s", said)
    assert rate is not None
    assert 10 < int(rate[1]) <= 100
    assert "7 x 6 by 6 x 5" in said
    assert "both sides are secret, and a mask hides one" in said
    assert "A step of 7 examples" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "such as --input 1x28x28"),
        (["--input", "1x-6"], "is not a shape"),
        (["--input", "1x6x6", "--privacy", "some"], "privacy is none, shuffle, mask"),
        (["--input", "1x6x6", "--mbps", "0"], "are more than 0"),
    ],
)
def test_what_cannot_be_explained(
    model_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert run(["offload", "explain", str(model_file), *words]) != 0
    assert complaint in capsys.readouterr().err


def test_a_file_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    assert run(["offload", "explain", str(file)]) != 0
    assert "defines neither a task nor a function model()" in capsys.readouterr().err
