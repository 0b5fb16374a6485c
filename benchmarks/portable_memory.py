"""The trainer of an agent at work on LeNet: what its process holds. Needs the packages of a device, and no others.

python -m benchmarks.portable_memory ENGINE GIVEN    # GIVEN: the files, as ``portable.prepare_lenet`` says
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from shoal.learning.layout import Layout
from shoal.trainer.host import TrainerHost
from shoal.trainer.prepared_job import first_model
from shoal.trainer.processors import ENGINES
from shoal.trainer.protocol import TrainerSettings

BATCH = 32


async def resident(engine: str, given: dict[str, Any]) -> dict[str, float]:
    """Train five batches as an agent does, in a confined process: what that holds then, and held at most."""
    plain = given | {"layout": Layout.from_json(given["layout"]), "train": tuple(given["train"])}
    settings = TrainerSettings(**plain, seed=0, batch_size=BATCH, learning_rate=0.01)
    host = TrainerHost(child_module=ENGINES[engine])
    try:
        await host.start(settings)
        _, host.shared.model[:] = first_model(Path(given["initial"]))
        result = await host.train(0, [0, 1, 2, 3, 4])
        assert result.finite
        assert host.shared.update.any()
        assert ("libtorch" in Path(f"/proc/{host.pid}/maps").read_text()) == (engine == "torch")
        return memory_mb(Path(f"/proc/{host.pid}/status").read_text())
    finally:
        await host.kill()
        await host.stop()


def memory_mb(status: str) -> dict[str, float]:
    """Resident memory of a process, now and at most, from its ``status`` in /proc. The kernel counts in 1,024 bytes."""
    found = {name: re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM")}
    now, most = (int(each.group(1)) * 1024 / 1e6 for each in found.values() if each is not None)
    return {"rss_mb": now, "peak_mb": most}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(resident(sys.argv[1], json.loads(sys.argv[2])))), flush=True)
