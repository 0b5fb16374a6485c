"""What every test may ask for: real data, or a clear reason why there is none."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from shoal.trainer.protocol import TrainerSettings

Pair = tuple[np.ndarray, np.ndarray]

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT / "tools"))
import tiers  # noqa: E402
import timing_recorder  # noqa: E402

# How long an example takes says more of the machine than of the code: every test has a time limit of its own.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")


pytest_addoption = tiers.pytest_addoption
pytest_collection_modifyitems = tiers.pytest_collection_modifyitems
pytest_ignore_collect = tiers.pytest_ignore_collect


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(timing_recorder.Recorder(tiers.tier_of))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure when it happens: a run that is stopped at its time limit prints no summary."""
    if report.failed:
        why = str(report.longrepr).strip().splitlines()[-12:]
        lines = (f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", *why)
        # The file that pytest itself prints to: sys.stdout is captured here.
        print("", *lines, sep="\n", file=sys.__stdout__, flush=True)


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches for another machine fails, wherever it runs."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(str(address[0])):
            raise AssertionError(f"a test tried to reach {address[0]}: only loopback is allowed")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with MNIST and the rest; the loaders are pointed at it."""
    named = os.environ.get("SHOAL_DATA")
    directory = Path(named) if named else ROOT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"needs real data: set SHOAL_DATA (there is no {directory})")
    monkeypatch.setenv("SHOAL_DATA", str(directory))
    return directory


@pytest.fixture
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that run pytest: it loads no plugin that they do not need, for some take seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")


@pytest.fixture
def imports_forgotten(tmp_path: Path) -> Iterator[None]:
    """Take back what importing a task does to this process: every test's task is called task.py."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def make_job(tmp_path: Path, imports_forgotten: None) -> Callable[..., TrainerSettings]:
    """Write a task's source and its examples to disk, and describe them as an agent would to its trainer."""

    def make(source: str, train: Pair, test: Pair | None = None, **settings: Any) -> TrainerSettings:
        from shoal.trainer.base import write_base
        from shoal.trainer.importer import make_task
        from shoal.trainer.placement import place
        from shoal.trainer.shards import write_shards

        bundle = tmp_path / "bundle"
        bundle.mkdir()
        (bundle / "task.py").write_text(source)
        paths = []
        for x, y in (train, test or train):
            # Small shards, so that a batch spans several.
            manifest = write_shards(x, y, tmp_path / "shards", shard_bytes=(x.nbytes + y.nbytes) // 3)
            paths.append(tuple(str(tmp_path / "shards" / shard.sha256) for shard in manifest.shards))
        chosen = {"entry": "task:Sample", "seed": 5, "batch_size": 8, "learning_rate": 0.1} | settings
        arguments = chosen.get("arguments", {})
        if "layout" not in chosen:
            from shoal.trainer.steps import build_model

            task = make_task(bundle, chosen["entry"], arguments)
            placed = place(task, build_model(task, chosen["seed"]))
            chosen["layout"] = placed.layout
            parts = write_base(placed.frozen, tmp_path / "shards")
            chosen["base"] = tuple(str(tmp_path / "shards" / part) for part in parts)
        return TrainerSettings(bundle_dir=str(bundle), train=paths[0], test=paths[1], **chosen)

    return make
