"""What the process of a trainer without PyTorch loads: on a small board every megabyte counts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.timeout(120)

#: OpenSSL, the network, and what writes files. None of them serves a trainer.
NEEDLESS = ("_hashlib", "_ssl", "asyncio", "google", "grpc", "cryptography", "psutil", "torch", "shoal.store.files")


def test_a_trainer_without_pytorch_loads_nothing_that_it_does_not_use() -> None:
    script = (
        "import json, sys, shoal.trainer.portable.child, shoal.trainer.portable.steps;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert "onnxruntime" in loaded
    assert [name for name in NEEDLESS if name in loaded] == []
