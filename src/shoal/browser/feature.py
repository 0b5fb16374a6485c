"""The description of tabs that train for the core."""

from __future__ import annotations

from shoal.features import Feature

FEATURE = Feature(name="browser", command="shoal.browser.cli:app", tab_door="shoal.browser.door:TabDoor")
