"""Metrics over HTTP: formats, the token, what is not served; and a device's own metrics."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.exporter.catalogue import CLUSTER, DEVICE, Described
from shoal.exporter.device import DeviceSamples
from shoal.exporter.families import build
from shoal.exporter.sample import Sample
from shoal.runtime.agent_usage import AgentReading
from shoal.runtime.metrics_door import MetricsDoor, listen_at

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shoal.exporter.serve import MetricsServer, Scrape

TOKEN = "0123456789abcdef0123"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@contextmanager
def serving(
    scrape: Scrape, *, token: str = "", host: str = "127.0.0.1", catalogue: tuple[Described, ...] = CLUSTER
) -> Iterator[str]:
    server = MetricsServer(MetricsDoor(host=host, port=0, token=token), scrape, catalogue)
    server.start()
    try:
        yield str(server.door)
    finally:
        server.stop()


def asked(url: str, *, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    assert url.startswith("http://")
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), ""


def some() -> list[Sample]:
    return [
        build(),
        Sample("shoal_job_examples", {"shoal_job": 'a"b\\'}, 230),
        Sample("shoal_nodes", {"state": "alive", "manager": "a:1"}, 2),
    ]


def test_text_and_openmetrics_as_asked() -> None:
    with serving(some) as url:
        status, plain, kind = asked(url)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert 'shoal_job_examples_total{shoal_job="a\\"b\\\\"} 230.0' in plain
        status, text, kind = asked(url, Accept=OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"shoal_build", "shoal_job_examples", "shoal_nodes"}
    assert families["shoal_job_examples"].samples[0].labels == {"shoal_job": 'a"b\\'}
    assert "python_gc" not in text, "families of the exporter's own process are not served"
    assert "process_cpu" not in text


def test_a_scraper_without_the_token_gets_nothing() -> None:
    with serving(some, token=TOKEN) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            status, text, _ = asked(url, **headers)
            assert status == 401
            assert "shoal_nodes" not in text
        assert asked(url, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_other_paths_and_methods_are_refused() -> None:
    with serving(some) as url:
        assert asked(url, method="POST")[0] == 405
        assert asked(url.replace("/metrics", "/"))[0] == 404


def test_a_scrape_that_fails_says_so_and_the_next_one_is_served() -> None:
    answers = iter([RuntimeError("no"), some()])

    def scrape() -> list[Sample]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with serving(scrape) as url:
        assert asked(url)[0] == 500
        assert asked(url)[0] == 200


def test_it_also_listens_on_ipv6() -> None:
    try:
        with serving(some, host="::1") as url:
            assert asked(url)[0] == 200
    except Misuse as error:
        pytest.skip(f"no IPv6 on this machine: {error}")


def test_an_exporter_that_starts_again_gets_its_port() -> None:
    with serving(some) as url:
        where = urllib.parse.urlsplit(url)
        assert where.hostname is not None
        # The server closes this connection first, so the port stays in TIME_WAIT.
        with socket.create_connection((where.hostname, where.port or 0), timeout=10) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while scraper.recv(1 << 16):
                pass
    again = MetricsServer(MetricsDoor(host=where.hostname, port=where.port or 0), some, CLUSTER)
    again.start()
    again.stop()


def test_beyond_loopback_a_token_is_needed(tmp_path: Path) -> None:
    assert listen_at("127.0.0.1:7073") == MetricsDoor(host="127.0.0.1", port=7073)
    assert listen_at("[::1]:7073").host == "::1"
    with pytest.raises(Misuse, match="write a token to a file"):
        listen_at("0.0.0.0:7073")
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(Misuse, match="at least 16 plain characters"):
        listen_at("0.0.0.0:7073", token_file=file)
    file.write_text(TOKEN + "\n")
    door = listen_at("0.0.0.0:7073", token_file=file)
    assert door.token == TOKEN
    assert TOKEN not in repr(door)
    with pytest.raises(Misuse, match="HOST:PORT"):
        listen_at("everywhere")


def test_a_device_tells_what_it_does_and_what_its_sensors_say(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu-thermal\n")
    (zone / "temp").write_text("48250\n")
    power = tmp_path / "sys/class/powercap/intel-rapl:0"
    power.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "1000000"), ("max_energy_range_uj", "9000000000")):
        (power / name).write_text(text)
    agent = AgentReading(
        node="attic",
        connected=True,
        jobs=("mnist-1",),
        trained_s=12.5,
        leases=40,
        bytes_up=3,
        bytes_down=4,
        link_bytes_per_s=1e6,
        cpu_s=1.0,
    )
    samples = DeviceSamples(lambda: agent, root=tmp_path)
    samples()
    (power / "energy_uj").write_text("3500000")
    with serving(samples, catalogue=DEVICE) as url:
        text = asked(url)[1]
    assert 'shoal_node_temperature_celsius{node="attic"} 48.25' in text
    assert 'shoal_node_energy_joules_total{measured="true",node="attic"} 2.5' in text
    assert 'shoal_agent_training_seconds_total{node="attic"} 12.5' in text
    assert 'shoal_agent_job_info{node="attic",shoal_job="mnist-1"} 1.0' in text
    assert 'shoal_agent_connected{node="attic"} 1.0' in text


def test_nobody_else_imports_the_client_library() -> None:
    program = (
        "import sys, shoal, shoal.cli.main, shoal.exporter.cli, shoal.runtime.agent, shoal.runtime.manager_node;"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'shoal.exporter.serve'))])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"
