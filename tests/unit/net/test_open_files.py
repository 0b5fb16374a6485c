"""Limits of this process, tried in another: what is raised here would stay so for every test after."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from shoal.net.open_files import attainable, connections_max, is_full
from shoal.wire.limits import CONNECTIONS_LEAST, CONNECTIONS_MAX, OPEN_FILES_WANTED

SCRIPT = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from shoal.net.open_files import connections_max, raise_limit
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections_max(memory_bytes=4 << 30))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "told"),
    [(256, 1024, (1024, 1024, 512)), (512, 512, (512, 512, 256)), (1024, 20_000, (20_000, 20_000, 10_000))],
)
def test_a_process_takes_the_files_it_may_have_and_leaves_half_for_files(
    soft: int, hard: int, told: tuple[int, ...]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert tuple(map(int, said.split())) == told


def test_a_machine_takes_as_many_connections_as_its_memory_bears() -> None:
    many = OPEN_FILES_WANTED
    assert connections_max(many, memory_bytes=1 << 30) == CONNECTIONS_LEAST, "a small board, as ever"
    # An eighth of 4 GiB, 50 kB each.
    assert connections_max(many, memory_bytes=4 << 30) == 10_737
    assert connections_max(many, memory_bytes=64 << 30) == CONNECTIONS_MAX
    assert connections_max(resource.RLIM_INFINITY, memory_bytes=64 << 30) == CONNECTIONS_MAX
    assert connections_max(1024, memory_bytes=64 << 30) == 512


def test_the_limit_that_a_process_can_raise_itself_to() -> None:
    endless = resource.RLIM_INFINITY
    assert attainable(1024, 4096) == 4096
    assert attainable(1024, endless) == OPEN_FILES_WANTED
    assert attainable(endless, endless) == OPEN_FILES_WANTED
    assert attainable(100_000, 200_000) == 100_000, "it is not lowered"


def test_a_manager_is_full_once_no_other_device_could_work() -> None:
    """Each has two connections while it works."""
    assert not is_full(511, connections=1024)
    assert is_full(512, connections=1024)
