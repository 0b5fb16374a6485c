"""The pages of operations list every family, every kind of event and every alert."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from shoal.exporter.catalogue import CLUSTER, DEVICE
from shoal.runtime.event_kinds import KINDS, level_of
from shoal.runtime.hooks import parse_hooks

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"


def test_every_family_is_a_row_with_its_labels_and_meaning() -> None:
    page = (OPERATIONS / "metrics.md").read_text()
    for each in (*CLUSTER, *DEVICE):
        assert f"| `{each.sample}` | {each.type} | {', '.join(each.labels) or '–'} | {each.help} |" in page


def test_every_alert_says_where_to_look() -> None:
    page = (OPERATIONS / "metrics.md").read_text()
    alerts = re.findall(r"alert: (\w+)", (OPERATIONS / "prometheus-rules.yml").read_text())
    assert len(alerts) == 17
    assert [alert for alert in alerts if alert not in page] == []


def test_every_kind_of_event_is_listed() -> None:
    page = (OPERATIONS / "logs.md").read_text()
    rows = re.findall(r"^\| `([a-z]+\.[a-z-]+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    levels = {kind: logging.getLevelName(level_of(kind)).lower() for kind in KINDS}
    assert rows == [(kind, about, levels[kind]) for kind, about in sorted(KINDS.items())]


def test_the_hooks_that_the_page_shows_are_hooks() -> None:
    import tomllib

    block = re.search(r"```toml\n(.*?)```", (OPERATIONS / "logs.md").read_text(), re.DOTALL)
    assert block is not None
    first, second = parse_hooks(tomllib.loads(block[1]), "the page")
    assert (first.on, second.on) == ({"job.failed", "device.lost"}, {"saturation.estimated"})
