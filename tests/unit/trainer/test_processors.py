"""Which cores a trainer takes, on trees of files like those of real boards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.trainer.processors import THREADS_VARIABLE, big_cores, capacities, cores_of, keep_to, threads_of

#: An ODROID-XU4, EDDL's board: four A7 cores and four A15 cores.
ODROID = {core: 377 if core < 4 else 1024 for core in range(8)}
#: A phone of three kinds: four little cores, three big ones, and one that is clocked higher.
PHONE = {**dict.fromkeys(range(4), 404), **dict.fromkeys(range(4, 7), 871), 7: 1024}


def tree(root: Path, sizes: dict[int, int], *, quota: str = "") -> Path:
    for core, capacity in sizes.items():
        folder = root / f"sys/devices/system/cpu/cpu{core}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    (root / "sys/devices/system/cpu/cpufreq").mkdir(parents=True)
    if quota:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/cpu.max").write_text(quota)
    return root


@pytest.mark.parametrize(
    ("allowed", "sizes", "big"),
    [
        (range(8), ODROID, (4, 5, 6, 7)),
        (range(8), PHONE, (4, 5, 6, 7)),
        # The affinity mask is kept: one big core among those allowed, or none.
        ((0, 1, 6), ODROID, (6,)),
        ((2, 3), ODROID, (2, 3)),
        # All alike, as on a Raspberry Pi.
        (range(4), dict.fromkeys(range(4), 1024), (0, 1, 2, 3)),
        # A PC's economical cores have more than half of the others' capacity.
        (range(4), {0: 1024, 1: 1024, 2: 620, 3: 620}, (0, 1, 2, 3)),
        # Linux does not say, or not of every core.
        (range(2), {}, (0, 1)),
        ((0, 1, 8), ODROID, (0, 1, 8)),
        ((), ODROID, ()),
    ],
)
def test_the_big_cores_of_those_allowed(allowed: tuple[int, ...], sizes: dict[int, int], big: tuple[int, ...]) -> None:
    assert big_cores(allowed, sizes) == big


def test_capacities_are_read_as_linux_writes_them(tmp_path: Path) -> None:
    assert capacities(tree(tmp_path / "board", ODROID)) == ODROID
    assert capacities(tmp_path / "nothing") == {}
    broken = tree(tmp_path / "broken", {0: 1024, 1: 377})
    (broken / "sys/devices/system/cpu/cpu1/cpu_capacity").write_text("\n")
    assert capacities(broken) == {0: 1024}


def with_one_big_core(root: Path, *, quota: str = "") -> tuple[Path, int]:
    """A tree in which the last of the cores that this process may use is big and all others are little."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one core: there is nothing to choose")
    return tree(root, {core: 1024 if core == allowed[-1] else 300 for core in allowed}, quota=quota), allowed[-1]


def test_a_trainer_takes_the_big_core_and_a_thread_for_it(tmp_path: Path) -> None:
    root, big = with_one_big_core(tmp_path)
    assert cores_of({}, root=root) == (big,)
    assert threads_of({}, root=root) == 1


def test_where_nothing_is_known_a_trainer_takes_every_core(tmp_path: Path) -> None:
    assert cores_of({}, root=tmp_path) == ()
    assert threads_of({}, root=tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_of_the_control_group_holds(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    alike = tree(tmp_path, dict.fromkeys(allowed, 1024), quota="100000 100000\n")
    assert cores_of({}, root=alike) == ()
    assert threads_of({}, root=alike) == 1


def test_an_owner_who_sets_threads_gets_them_on_every_core(tmp_path: Path) -> None:
    root, _ = with_one_big_core(tmp_path)
    assert threads_of({THREADS_VARIABLE: "2"}, root=root) == 2
    assert cores_of({THREADS_VARIABLE: "2"}, root=root) == ()
    with pytest.raises(Misuse, match="set a number of threads"):
        threads_of({THREADS_VARIABLE: "two"}, root=root)


def test_a_process_keeps_to_its_cores_and_so_do_its_threads() -> None:
    code = (
        "import os, threading\n"
        "from shoal.trainer.processors import keep_to\n"
        "first = min(os.sched_getaffinity(0))\n"
        "keep_to(())\n"
        "assert first in os.sched_getaffinity(0)\n"
        "keep_to((first,))\n"
        "seen = []\n"
        "thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join()\n"
        "assert os.sched_getaffinity(0) == seen[0] == {first}, seen\n"
        # A core that is not there changes nothing.
        "keep_to((1023,))\n"
        "assert os.sched_getaffinity(0) == {first}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    keep_to(())
