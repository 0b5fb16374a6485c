"""Limits of this process, tried in another: what is raised here would stay so for every test after."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.wire.limits import CONNECTIONS_MAX

SCRIPT = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from shoal.net.open_files import connections_max, raise_limit
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections_max())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "told"),
    [(256, 1024, (1024, 1024, 512)), (512, 512, (512, 512, 256)), (1024, 20_000, (20_000, 20_000, CONNECTIONS_MAX))],
)
def test_a_process_takes_the_files_it_may_have_and_leaves_half_for_files(
    soft: int, hard: int, told: tuple[int, ...]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert tuple(map(int, said.split())) == told
