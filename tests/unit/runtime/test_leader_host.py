"""What a device that leads does beside its event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from shoal.identity.identity import Authority, Identity
from shoal.runtime.leader_host import LeaderHost
from shoal.wire.messages import JobSpec, Message
from tests.unit.identity.test_signing import SPEC


class Around:
    def __init__(self, identity: Identity, code: Path) -> None:
        self.identity = identity
        self._code = code
        self.checked_in: list[threading.Thread] = []

    def send(self, to: str, message: Message) -> None:
        raise AssertionError("nothing is to be sent")

    async def fetch(self, sha256: str) -> Path:
        assert self.checked_in, "nothing of a job is fetched before it was checked"
        return self._code

    def check_job(self, spec: JobSpec) -> None:
        self.checked_in.append(threading.current_thread())


def test_a_job_is_checked_beside_the_event_loop_of_the_device_that_leads_it(tmp_path: Path) -> None:
    """The first check imports `cryptography`, for seconds on a small board: heartbeats do not wait."""
    (tmp_path / "code").write_bytes(b"code")
    member = Authority.create(tmp_path / "authority", "pond").identity(node="pi", role="node")
    around = Around(member, tmp_path / "code")

    async def lead() -> bytes:
        leader_host = LeaderHost(around, manager="manager", manager_endpoint="127.0.0.1:9")
        try:
            return await leader_host.code_of(SPEC)
        finally:
            await leader_host.stop()

    assert asyncio.run(lead()) == b"code"
    assert around.checked_in
    assert threading.main_thread() not in around.checked_in
