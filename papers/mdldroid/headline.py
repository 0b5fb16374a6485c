"""The few figures by which the reproduction is judged, out of the rows. Pure."""

from __future__ import annotations

from typing import Any

from papers.eddl.rows import Row


def headline(rows: dict[str, list[Row]]) -> dict[str, Any]:
    return {}
