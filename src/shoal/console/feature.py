"""The description of the console for the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(name="console", command="shoal.cli.commands.console:console")
