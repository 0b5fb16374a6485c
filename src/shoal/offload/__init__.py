"""Borrowed compute: products cut into tasks, hidden, checked, shared out. Pure functions and small state, numpy only.

``shoal.offload`` is also what people call: ``model = shoal.offload(model, pool)``. A package and a function of one name
are one object in Python, so this one can be called; what it does then is in ``shoal.api``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By its name: imports run downward, and this is a door for people, not a way for code.
        return import_module("shoal.api").offload(*args, **kwargs)


sys.modules[__name__].__class__ = _Called
