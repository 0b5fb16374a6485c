"""The tab's order of examples against Python's, for sets that are shuffled in windows."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.scheduling.batches import WindowShuffle, window_shards

TAB = Path(__file__).parents[3] / "tab"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine"),
    pytest.mark.skipif(
        not (TAB / "node_modules").is_dir(), reason="the tab's tools are not here: python tools/tasks.py tab"
    ),
]

PLAY = """
import { WindowShuffle, windowShards } from "./built/batches.mjs";
const told = JSON.parse(process.argv[1]).map(({ rows, seed, window, asked, cache, largest }) => {
  const shuffle = new WindowShuffle(rows, seed, window);
  const orders = asked.map(([epoch, start, stop]) => Array.from(shuffle.indices(epoch, start, stop)));
  return { orders, window: windowShards(cache, largest) };
});
console.log(JSON.stringify(told));
"""


def test_a_tab_finds_the_same_examples_in_every_batch_of_a_windowed_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    cases = []
    for seed in range(60):
        rows = rng.integers(0, 40, rng.integers(1, 12)).tolist()
        total = sum(rows)
        asked = []
        for epoch in range(3):
            size = int(rng.integers(1, 20))
            asked += [[epoch, start, min(total, start + size)] for start in range(0, total, size)]
        sizes = {"cache": int(rng.integers(0, 1 << 26)), "largest": int(rng.integers(1, 1 << 24))}
        cases.append({"rows": rows, "seed": seed, "window": int(rng.integers(1, 9)), "asked": asked, **sizes})
    subprocess.run(["node", "build.mjs", str(tmp_path / "built")], cwd=TAB, check=True, timeout=200)
    command = ["node", "--input-type=module", "-e", PLAY, json.dumps(cases)]
    told = subprocess.run(command, cwd=TAB, check=True, capture_output=True, text=True, timeout=200)
    for case, found in zip(cases, json.loads(told.stdout), strict=True):
        shuffle = WindowShuffle(case["rows"], seed=case["seed"], window=case["window"])
        for (epoch, start, stop), order in zip(case["asked"], found["orders"], strict=True):
            assert order == shuffle.indices(epoch, start, stop).tolist()
        assert found["window"] == window_shards(cache_bytes=case["cache"], shard_bytes=case["largest"])
