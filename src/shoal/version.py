"""The release's version. Below everything, so that any layer may say it."""

from __future__ import annotations

__version__ = "0.1.0"
