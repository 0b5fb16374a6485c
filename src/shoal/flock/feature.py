"""What the flock provides to the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(name="flock", command="shoal.flock.cli:app")
