"""The description of the exporter for the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(name="exporter", command="shoal.exporter.cli:app", agent_metrics="shoal.exporter.device:serve_device")
