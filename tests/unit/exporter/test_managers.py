"""What managers say of themselves becomes series, few per manager, also of one that is gone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.exporter.catalogue import CLUSTER
from shoal.exporter.managers import SeenManager, samples_of_managers
from shoal.exporter.serve import families_of
from shoal.store.usage import BOUNDS_S
from shoal.wire.messages import ManagerView, StoreView

if TYPE_CHECKING:
    from prometheus_client.core import Metric

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

COUNTS = (3, 2, 0, 1, 0, 0, 1)
VIEW = ManagerView(
    manager="a.lan:7070",
    unproven_s=0.4,
    takeovers=1,
    jobs_taken=3,
    went_back=2,
    loop_lag_s=0.03,
    authority_until_s=2e9,
    devices=7,
    stores=(StoreView(store="database", counts=COUNTS, seconds=12.5, errors=4, waiting_s=0.2),),
    others=("b.lan:7070",),
)


def told(*managers: SeenManager) -> dict[tuple[str, ...], float]:
    samples = list(samples_of_managers(managers))
    keyed = {(s.family, *(s.labels[name] for name in sorted(s.labels))): s.value for s in samples}
    assert len(keyed) == len(samples), "no series twice: Prometheus would refuse the scrape"
    return keyed


def test_a_manager_that_answers() -> None:
    found = told(SeenManager(address="a.lan:7070", is_reached=True, view=VIEW))
    assert found["shoal_manager_reachable", "a.lan:7070"] == 1
    assert found["shoal_manager_ready", "a.lan:7070"] == 1
    assert found["shoal_manager_seat_unproven_seconds", "a.lan:7070"] == 0.4
    assert found["shoal_manager_takeovers", "a.lan:7070"] == 1
    assert found["shoal_manager_store_went_back", "a.lan:7070"] == 2
    assert found["shoal_store_errors", "a.lan:7070", "database"] == 4
    assert found["shoal_authority_expiry_timestamp_seconds", "a.lan:7070"] == 2e9


def test_a_manager_that_is_gone_proves_no_seat() -> None:
    found = told(SeenManager(address="a.lan:7070", is_reached=False, view=VIEW, age_s=90.0))
    assert found["shoal_manager_reachable", "a.lan:7070"] == 0
    assert found["shoal_manager_ready", "a.lan:7070"] == 0
    assert found["shoal_manager_seat_held", "a.lan:7070"] == 0
    assert found["shoal_manager_seat_unproven_seconds", "a.lan:7070"] == 90.4
    assert ("shoal_manager_devices", "a.lan:7070") not in found, "nobody knows"


def test_a_manager_of_an_earlier_release_answers_and_says_nothing_of_itself() -> None:
    assert told(SeenManager(address="a.lan:7070", is_reached=True)) == {("shoal_manager_reachable", "a.lan:7070"): 1}


def test_a_manager_that_is_alone_has_no_seat_to_prove() -> None:
    alone = ManagerView(manager="a.lan:7070", trouble="its database fails")
    found = told(SeenManager(address="a.lan:7070", is_reached=True, view=alone))
    assert found["shoal_manager_ready", "a.lan:7070"] == 0
    assert ("shoal_manager_seat_unproven_seconds", "a.lan:7070") not in found


def test_calls_to_a_store_are_a_histogram() -> None:
    (family,) = (
        each
        for each in families_of(samples_of_managers([SeenManager(address="a:1", is_reached=True, view=VIEW)]), CLUSTER)
        if each.name == "shoal_store_call_seconds"
    )
    by_name = {sample.name: sample.value for sample in family.samples if "le" not in sample.labels}
    assert by_name == {"shoal_store_call_seconds_count": 7, "shoal_store_call_seconds_sum": 12.5}
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels}
    assert buckets == {"0.005": 3, "0.02": 5, "0.1": 5, "0.5": 6, "2": 6, "10": 6, "+Inf": 7}


def test_a_histogram_of_other_bounds_is_left_out() -> None:
    odd = ManagerView(manager="a:1", stores=(StoreView(store="database", counts=(1,) * len(BOUNDS_S)),))
    assert ("shoal_store_call_seconds", "a:1", "database") not in told(
        SeenManager(address="a:1", is_reached=True, view=odd)
    )


def test_promtool_accepts_the_series() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    from prometheus_client import CollectorRegistry, generate_latest

    class Scraped:
        def collect(self) -> Iterator[Metric]:
            seen = SeenManager(address="a.lan:7070", is_reached=True, view=VIEW)
            return families_of(samples_of_managers([seen]), CLUSTER)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scraped())
    page = generate_latest(registry)
    assert b"shoal_store_call_seconds_bucket" in page
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
