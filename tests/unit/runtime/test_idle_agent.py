"""An agent that has no job: what its process does without."""

from __future__ import annotations

import subprocess
import sys

#: Modules that a device pays for with its first job.
LATER = ("numpy", "torch", "shoal.roles.worker.worker", "shoal.runtime.worker_driver", "shoal.trainer.host")

#: Modules that an agent does without while it waits, and that take most of a megabyte or more.
NEVER_IDLE = ("_hashlib", "cryptography", "google.protobuf.descriptor_pb2", "psutil", "ssl")

#: What an agent does while it waits: it imports itself, asks for its folder of examples, sends and reads messages.
IDLE = """
import sys
from pathlib import Path

from shoal.runtime.agent_main import _import_asyncio

_import_asyncio()

import shoal.runtime.agent
from shoal.net.shared_budget import SharedBudget
from shoal.runtime import tenancy
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.own_data import expose
from shoal.runtime.paths import Paths
from shoal.wire.frames import envelope_frame, frames, read_message, read_opening
from shoal.wire.messages import Heartbeat, HeartbeatSeen, Welcome

AgentOptions.parse(["--home", "no-such-home", "--engine", "onnx", "--threads=1", "--leash"])
tenancy.successor(Path("no-such-home"))
expose(Paths(Path("no-such-home")), None)
for message in (Heartbeat(seq=1), HeartbeatSeen(seq=1), Welcome(heartbeat_s=1.0, lost_after_s=5.0)):
    assert read_message(frames(message)) == message
    head = envelope_frame(message)
    assert list(SharedBudget().chunks.frames(message, head)) == [head]
"""


def modules_after(program: str) -> set[str]:
    """The modules of a process that ran this program."""
    code = f"{program}\nimport sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    return set(ran.stdout.split())


def test_an_agent_without_a_job_loads_neither_numpy_nor_the_worker() -> None:
    loaded = modules_after(IDLE)
    assert "shoal.net.grpc" in loaded
    assert [module for module in (*LATER, *NEVER_IDLE) if module in loaded] == []


def test_what_was_loaded_before_an_agent_begins_stays_as_it_is() -> None:
    """A sitecustomize may load `ssl` and change it: a second copy would not be the changed one."""
    loaded = modules_after(
        "import ssl, sys; from shoal.runtime.agent_main import _import_asyncio; _import_asyncio();"
        " import asyncio.sslproto; assert sys.modules['ssl'] is ssl is asyncio.sslproto.ssl"
    )
    assert "asyncio" in loaded


def test_its_first_job_loads_them() -> None:
    loaded = modules_after("import shoal.runtime.agent as agent; agent._import_worker()")
    assert [module for module in LATER if module not in loaded] == ["torch"]


def test_shoal_itself_loads_neither_torch_nor_numpy() -> None:
    assert not {"torch", "numpy"} & modules_after("import shoal")


def test_a_hub_sums_up_without_torch_and_without_a_trainer() -> None:
    """What it has loaded once it is the hub of a job and an aggregator of its formation."""
    loaded = modules_after("import shoal.runtime.agent as agent, shoal.runtime.hub_driver; agent._import_leader_host()")
    assert {"shoal.roles.aggregator.aggregator", "numpy"} <= loaded
    assert not {"torch", "shoal.roles.worker.worker", "shoal.runtime.worker_driver", "shoal.trainer.host"} & loaded
