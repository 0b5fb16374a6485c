"""The description of the flock for the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(name="flock", command="shoal.flock.cli:app")
