"""Large tensors leave nothing behind: neither the frames that they were sent in, nor the buffer that they came in."""

from __future__ import annotations

import numpy as np

from shoal.net.shared_budget import ChunkCache, Uploads
from shoal.wire.frames import envelope_frame, read_message
from shoal.wire.limits import FRAMES_KEPT_MAX_BYTES
from shoal.wire.messages import Update


def update(values: int) -> Update:
    delta = np.arange(values, dtype=np.float32)
    delta.flags.writeable = False
    return Update(job="j", term=1, lease=1, version=0, examples=1, loss_sum=0.0, tensors={"delta": delta})


def frames_kept(cache: ChunkCache) -> int:
    return sum(len(frame) for frames in cache._frames.values() for frame in frames)


def test_frames_of_a_large_model_are_not_kept() -> None:
    cache = ChunkCache()
    small, large = update(1 << 20), update(FRAMES_KEPT_MAX_BYTES // 4 + 1)
    for message in (small, large):
        arrived = read_message(iter(list(cache.frames(message, envelope_frame(message)))))
        assert isinstance(arrived, Update)
        assert arrived.tensors["delta"].tobytes() == message.tensors["delta"].tobytes()
    assert 0 < frames_kept(cache) <= small.tensors["delta"].nbytes + 4096


def test_a_buffer_above_the_share_of_a_peer_belongs_to_its_message() -> None:
    uploads = Uploads(1000)
    small, large = uploads.buffer(500), uploads.buffer(501)
    uploads.keep(large)
    assert uploads.buffer(501) is not large
    uploads.keep(small)
    assert uploads.buffer(500) is small
