"""Seeds in processes of their own: the same results, and a reason where a process cannot be had or ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

import shoal
from shoal.cli.seed_processes import check_processes
from shoal.errors import Misuse, ShoalError

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments_rules import Ending, Halved
from experiments_task import Blobs

pytestmark = pytest.mark.timeout(240)

T = TypeVar("T")

PLAN = shoal.Plan(
    data="local",
    workers_min=4,
    epoch_leases=4,
    lease_batches=2,
    batch_size=16,
    learning_rate=0.1,
    momentum=0.0,
    until=shoal.epochs(2),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return tmp_path


def simulated(**changes: Any) -> shoal.SeedSeries:
    return shoal.simulate(Blobs(), devices=4, partition="iid", seeds=2, plan=PLAN, progress=False, **changes)


@pytest.mark.full
def test_two_processes_give_what_one_gives() -> None:
    assert simulated(processes=2).to_plain() == simulated().to_plain()
    apart, here = simulated(processes=2, algorithm=Halved()), simulated(algorithm=Halved())
    assert apart.to_plain() == here.to_plain()
    assert apart.outcomes == here.outcomes, "also what is not part of the hash"


@pytest.mark.full
def test_a_process_that_ends_early_is_named() -> None:
    with pytest.raises(ShoalError, match="a process that simulated a seed ended early"):
        simulated(processes=2, algorithm=Ending())


@pytest.mark.parametrize("processes", [0, -1, 1000])
def test_impossible_numbers_are_refused(processes: int) -> None:
    with pytest.raises(Misuse, match=f"processes = {processes}: "):
        simulated(processes=processes)


def test_a_notebooks_algorithm_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halved, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(Misuse, match="cannot import Halved from a notebook"):
        check_processes(2, Halved())
    check_processes(1, Halved())


@pytest.mark.full
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import shoal\n"
        "from experiments_task import Blobs\n"
        'shoal.simulate(Blobs(), devices=2, partition="iid", seeds=2, processes=2, progress=False)\n'
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert 'put `if __name__ == "__main__":` before the call' in done.stderr


@pytest.mark.full
def test_no_process_outlives_a_script_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import shoal\n"
        "from experiments_task import Blobs\n"
        'if __name__ == "__main__":\n'
        '    plan = shoal.Plan(data="local", workers_min=4, epoch_leases=4, batch_size=16, until=shoal.epochs(5000))\n'
        '    shoal.simulate(Blobs(), devices=4, partition="iid", seeds=2, plan=plan, processes=2, progress=False)\n'
    )
    running = subprocess.Popen([sys.executable, str(script)])
    try:
        # Two that simulate, and one of multiprocessing's own.
        started = awaited(lambda: psutil.Process(running.pid).children(recursive=True), lambda found: len(found) == 3)
        # They are at work: they took what the script sent them.
        awaited(lambda: [each.cpu_times().user for each in started], lambda used: sum(each > 3.0 for each in used) == 2)
    finally:
        running.kill()
        running.wait()
    assert psutil.wait_procs(started, timeout=30)[1] == []


def awaited(look: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    for _ in range(1200):
        if is_so(found := look()):
            return found
        time.sleep(0.1)
    raise AssertionError(f"still {found}")
