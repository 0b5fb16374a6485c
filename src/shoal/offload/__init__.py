"""A feature: matrix products computed by devices that need not be trusted; cut into tasks, hidden, checked, shared out.

The modules here are pure functions and small state on numpy arrays; ``roles`` decide, ``runtime`` drives them, and only
``torch`` imports torch. ``shoal.offload`` is also a function: ``model = shoal.offload(model, pool)``. A package and a
function of one name are one object in Python, so this package can be called: it calls ``api.offload``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Imported when it is called: agents and managers import this package too.
        return import_module("shoal.offload.api").offload(*args, **kwargs)


sys.modules[__name__].__class__ = _Called
