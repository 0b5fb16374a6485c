"""Open files cross from an agent to a trainer by number, and to read alone."""

import os
import socket

import numpy as np
import pytest

from shoal.errors import Corrupt, Misuse
from shoal.trainer import open_files
from shoal.trainer.open_files import receive_file, send_file
from shoal.trainer.shards import Examples, write_shards


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_file_that_was_sent_for_an_abandoned_command_is_passed_over(ends, tmp_path):
    ours, theirs = ends
    for number in (3, 4):
        (tmp_path / str(number)).write_text(f"file {number}")
        send_file(ours, number, tmp_path / str(number))
    before = len(os.listdir("/dev/fd"))
    with receive_file(theirs, 4) as file:
        assert file.read() == b"file 4"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.fileno(), b"more")
    assert len(os.listdir("/dev/fd")) == before, "nothing stays open"


def test_a_file_that_does_not_come_ends_the_wait(ends, monkeypatch):
    monkeypatch.setattr(open_files, "_WAIT_S", 0.05)
    with pytest.raises(Misuse, match="file 7 did not come"):
        receive_file(ends[1], 7)
    ends[0].send(b"\0" * 8)
    with pytest.raises(Misuse, match="file 0 did not come"):
        receive_file(ends[1], 0)


def test_shards_are_opened_and_shut_by_number(tmp_path):
    x, y = np.arange(20, dtype=np.uint8), np.arange(20)
    manifest = write_shards(x, y, tmp_path, shard_bytes=45)
    assert [shard.examples for shard in manifest.shards] == [5, 5, 5, 5]
    files = [tmp_path / shard.sha256 for shard in manifest.shards]
    examples = Examples.to_come([5, 5, 5, 5])
    assert len(examples) == 20
    examples.open(2, files[2].open("rb"))
    files[2].unlink()
    assert examples.take(np.array([14, 10]))["y"].tolist() == [14, 10]
    with pytest.raises(Misuse, match="shard 0 of the examples is not here"):
        examples.take(np.array([14, 0]))
    examples.shut(2)
    with pytest.raises(Misuse, match="shard 2 of the examples is not here"):
        examples.take(np.array([14]))
    with pytest.raises(Misuse, match="shards 0 to 3, not 4"):
        examples.open(4, files[0].open("rb"))


def test_a_shard_that_its_manifest_does_not_describe(tmp_path):
    manifest = write_shards(np.zeros(5, np.uint8), np.arange(5), tmp_path)
    examples = Examples.to_come([5, 6])
    examples.open(0, (tmp_path / manifest.shards[0].sha256).open("rb"))
    with pytest.raises(Corrupt, match="shard 1 holds another number of examples"):
        examples.open(1, (tmp_path / manifest.shards[0].sha256).open("rb"))
    other = write_shards(np.zeros((6, 2), np.uint8), np.arange(6), tmp_path)
    with pytest.raises(Corrupt, match="another shape or type"):
        examples.open(1, (tmp_path / other.shards[0].sha256).open("rb"))
