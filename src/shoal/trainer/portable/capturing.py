"""Asks a process with PyTorch for the graphs of a prepared task. No torch here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.extras import install_command
from shoal.plan import Plan
from shoal.trainer.bundle import unpack
from shoal.trainer.importer import is_script
from shoal.trainer.package import ReadyTask
from shoal.trainer.spawn import child
from shoal.wire.encoding import to_json

_NEEDED = ("onnx", "onnxruntime")
FOR_TORCH = "for PyTorch devices only"


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """The file of the graphs, or None and the reason why there are none."""

    path: Path | None = None
    sha256: str = ""
    told: str = ""


async def capture_ready(
    ready: ReadyTask, plan: Plan, *, folder: Path, on_progress: Callable[[str], None] = lambda text: None
) -> Captured:
    """Capture and verify the step of a prepared task in a separate process. The result has a text in any case."""
    captured = await _captured(ready, plan, folder, on_progress)
    on_progress(captured.told)
    return captured


async def _captured(ready: ReadyTask, plan: Plan, folder: Path, tell: Callable[[str], None]) -> Captured:
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        return Captured(told=f"{FOR_TORCH}: capturing needs {', '.join(missing)}: {install_command('export')}")
    if is_script(ready.entry):
        return Captured(told=f"{FOR_TORCH}: a script has a training loop of its own")
    tell("capturing the training step for devices without PyTorch")
    prepared, out = ready.prepared, folder / "graphs.safetensors"
    with tempfile.TemporaryDirectory(prefix="shoal-capture-") as bundle_dir:
        await asyncio.to_thread(unpack, ready.bundle, Path(bundle_dir))
        settings = {
            "bundle_dir": str(Path(bundle_dir).resolve()),
            "entry": ready.entry,
            "arguments": ready.arguments,
            "plan": to_json(plan),
            "model": prepared.model,
            "base": list(prepared.base_paths),
            "train": list(prepared.paths(prepared.train)),
            "test": list(prepared.paths(prepared.test)),
            "out": str(out),
        }
        async with child(
            "shoal.trainer.portable.capture_child",
            json.dumps(settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = asyncio.create_task(process.stderr.read())
            outcome: dict[str, Any] = {}
            async for line in process.stdout:
                try:
                    outcome = json.loads(line)
                except ValueError:
                    # The process was killed in the middle of it.
                    break
                if "doing" in outcome:
                    tell(f"capturing: {outcome['doing']}")
            await process.wait()
            words = (await errors).decode(errors="replace").strip().splitlines()
    if "captured" in outcome:
        size, nodes = outcome["captured"]["bytes"], outcome["captured"]["nodes"]
        told = f"captured for devices without PyTorch: {nodes:,} nodes, {size:,} bytes, agrees with PyTorch"
        return Captured(path=out, sha256=hashlib.sha256(out.read_bytes()).hexdigest(), told=told)
    reason = outcome.get("failed") or (words[-1] if words else f"exit code {process.returncode}")
    return Captured(told=f"{FOR_TORCH}: {reason}")
