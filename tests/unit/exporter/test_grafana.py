"""The dashboard and the alerts: Grafana's shape, and no metric or label that the exporters do not have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.exporter.catalogue import CLUSTER, DEVICE, SAMPLES

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"
RULES = OPERATIONS / "prometheus-rules.yml"

NAME = re.compile(r"\bshoal_[a-z0-9_]+")
#: A selector or a grouping: where labels stand in a query.
LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)")

#: The panels that this schema of Grafana knows.
PANELS = {"stat", "timeseries", "table"}
SCHEMA = 39
COLUMNS = 24


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OPERATIONS / "grafana.json").read_text())
    return found


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def rules() -> list[str]:
    return [line.strip().removeprefix("expr: ") for line in RULES.read_text().splitlines() if "expr:" in line]


def test_the_dashboard_has_the_shape_that_grafana_imports(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == SCHEMA
    assert {"uid", "title", "time", "refresh", "templating", "annotations", "panels"} <= set(dashboard)
    assert "id" not in dashboard, "Grafana gives a dashboard its id when it is imported"
    panels = dashboard["panels"]
    assert len(panels) == 15
    assert len({panel["id"] for panel in panels}) == 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in PANELS
        assert panel["title"]
        assert panel["description"]
        assert "unit" in panel["fieldConfig"]["defaults"]
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["expr"]
            assert target["legendFormat"]
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "shoal_job": "query"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used == set(variables), "every variable is defined, and used"


@pytest.mark.parametrize(
    "family",
    ["shoal_manager_seat_unproven_seconds", "shoal_store_call_seconds_bucket", "shoal_manager_takeovers_total"],
)
def test_managers_and_their_stores_have_panels(dashboard: dict[str, Any], family: str) -> None:
    assert any(family in expression for expression in expressions(dashboard))


def test_losses_are_annotations(dashboard: dict[str, Any]) -> None:
    told = dashboard["annotations"]["list"]
    assert all(each["enable"] and each["datasource"]["type"] == "prometheus" for each in told)
    assert any("shoal_node_losses_total" in each["expr"] for each in told)


def test_every_name_and_label_exists(dashboard: dict[str, Any]) -> None:
    labels = {label for each in (*CLUSTER, *DEVICE) for label in each.labels} | {"le"}
    asked = [*expressions(dashboard), *rules()]
    assert len(asked) > 25
    for expression in asked:
        # The label shoal_job and the variable of its name stand beside the families.
        named = set(NAME.findall(expression)) - {"shoal_job"}
        assert named, expression
        assert named <= SAMPLES, f"{named - SAMPLES} in {expression}"
        for selector, grouping in LABELS.findall(expression):
            words = re.findall(r"(\w+)\s*(?:=|!)", selector) if selector else re.findall(r"\w+", grouping)
            assert set(words) <= labels, f"{set(words) - labels} in {expression}"
    legends = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", json.dumps(dashboard) + RULES.read_text())
    assert set(legends) <= labels


def test_promtool_accepts_the_rules() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_alerts_fire_when_they_should_and_not_before() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    stories = Path(__file__).with_name("alerts.yml")
    done = subprocess.run([promtool, "test", "rules", str(stories)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
