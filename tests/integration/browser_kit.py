"""What tests of tabs and of the worker's package need of this machine, as marks."""

from __future__ import annotations

import shutil

import pytest
import worker_package
from kit import HERE

from testbed.browsers.chromium import program

# Whoever imports this file is skipped as well.
pytest.importorskip("starlette")
pytest.importorskip("websockets")

#: The engine that a manager hands to tabs, from npm.
ENGINE = HERE.parents[1] / "tab" / "node_modules" / "onnxruntime-web"

_CHROMIUM = pytest.mark.skipif(program() is None, reason="no Chromium on this machine")
_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine")
_ENGINE = pytest.mark.skipif(not ENGINE.is_dir(), reason="no onnxruntime-web: python tools/tasks.py tab")
_PACKAGE = pytest.mark.skipif(bool(worker_package.missing()), reason=worker_package.missing() or "all is here")

IN_CHROMIUM = (_CHROMIUM, _ENGINE)
IN_NODE = (_NODE, _PACKAGE)
FROM_THE_PACKAGE = (_CHROMIUM, _PACKAGE)
