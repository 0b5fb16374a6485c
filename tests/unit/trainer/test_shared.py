import os
import subprocess
import sys

import numpy as np
import pytest

from shoal.errors import Corrupt, Misuse
from shoal.learning.layout import SIZE_MAX
from shoal.trainer.shared import SharedVectors

WRITER = """
import sys
from shoal.trainer.shared import SharedVectors
shared = SharedVectors.attach(int(sys.argv[1]), 5000)
shared.update[:] = shared.model * 2
shared.model[0] = -1
"""


def test_two_processes_see_the_same_vectors():
    shared = SharedVectors.create(5000)
    assert not shared.model.any()
    assert not shared.update.any()
    shared.model[:] = np.arange(5000)
    subprocess.run([sys.executable, "-c", WRITER, str(shared.fd)], pass_fds=[shared.fd], timeout=60, check=True)
    # The other process is gone; what it wrote is not.
    assert shared.update[[1, 4999]].tolist() == [2, 9998]
    assert shared.model[0] == -1
    shared.close()


def test_the_regions_do_not_touch():
    for size in (1, 1023, 1024, 1025):
        shared = SharedVectors.create(size)
        shared.model[:] = 1
        assert not shared.update.any()
        shared.update[:] = 2
        assert set(shared.model.tolist()) == {1}
        shared.close()


def test_close_gives_the_descriptor_back_and_spares_views_still_held():
    shared = SharedVectors.create(10)
    held = shared.model
    held[:] = 3
    fd = shared.fd
    shared.close()
    shared.close()
    with pytest.raises(OSError):
        os.fstat(fd)
    assert held.tolist() == [3] * 10
    assert len(shared.model) == 0


def test_absurd_sizes():
    for size in (0, -1, SIZE_MAX + 1):
        with pytest.raises(Misuse, match="1 to"):
            SharedVectors.create(size)
    shared = SharedVectors.create(10)
    with pytest.raises(Misuse, match="does not hold"):
        SharedVectors.attach(shared.fd, 5000)
    shared.close()


CRAMPED = """
import resource
from shoal.errors import Corrupt, Misuse
from shoal.trainer.shared import SharedVectors
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
SharedVectors.create(1000).close()
try:
    SharedVectors.create(1 << 20)
except Misuse as refusal:
    print(refusal)
"""


def test_memory_that_is_not_there_is_an_error_not_a_crash():
    done = subprocess.run([sys.executable, "-c", CRAMPED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("no room for 8,388,608 bytes of shared memory")


CUTTER = """
import os, sys
try:
    os.ftruncate(int(sys.argv[1]), int(sys.argv[2]))
except PermissionError:
    print("refused")
"""


def cut(fd, size_bytes):
    """What another process that has the descriptor is told when it changes the size."""
    command = [sys.executable, "-c", CUTTER, str(fd), str(size_bytes)]
    return subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux seals memory")
def test_nobody_makes_the_memory_shorter_or_longer():
    shared = SharedVectors.create(5000)
    shared.update[:] = 7
    size_bytes = os.fstat(shared.fd).st_size
    for other in (0, 4096, 2 * size_bytes):
        assert cut(shared.fd, other) == "refused"
    assert os.fstat(shared.fd).st_size == size_bytes
    assert shared.update.sum() == 35_000
    shared.close()


def without_seals(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_file_that_is_cut_short_is_an_error_and_no_signal(monkeypatch, tmp_path):
    without_seals(monkeypatch, tmp_path)
    shared = SharedVectors.create(5000)
    shared.model[:] = np.arange(5000)
    shared.give()
    subprocess.run([sys.executable, "-c", WRITER, str(shared.fd)], pass_fds=[shared.fd], timeout=60, check=True)
    shared.take()
    assert shared.update[[1, 4999]].tolist() == [2, 9998]
    # What the other process writes over the model is not ours.
    assert shared.model[0] == 0
    cut(shared.fd, 0)
    with pytest.raises(Corrupt, match="cut short"):
        shared.take()
    shared.give()
    shared.close()
    shared.close()


def test_without_memfd_a_nameless_file_serves(monkeypatch, tmp_path):
    without_seals(monkeypatch, tmp_path)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    shared = SharedVectors.create(100)
    shared.model[:] = 4
    shared.give()
    again = SharedVectors.attach(os.dup(shared.fd), 100)
    assert again.model.tolist() == [4] * 100
    assert list(tmp_path.iterdir()) == []
    again.close()
    shared.close()
