"""The documented HAProxy: what it says is what is tested, and HAProxy itself can read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import haproxy_server

pytestmark = pytest.mark.timeout(60)


def test_every_address_of_the_configuration_is_replaced() -> None:
    text = haproxy_server.configuration(20_000, (20_010, 20_020, 20_030))
    assert text.count("bind 127.0.0.1:2000") == 2
    assert "server b 127.0.0.1:20020 port 20021" in text
    assert "server c 127.0.0.1:20031 track managers/c" in text
    assert "mode tcp" in text, "TLS passes through"


def test_haproxy_reads_it(tmp_path: Path) -> None:
    if why := haproxy_server.missing():
        pytest.skip(why)
    path = tmp_path / "haproxy.cfg"
    path.write_text(haproxy_server.configuration(20_000, (20_010, 20_020, 20_030)))
    read = subprocess.run([haproxy_server.program(), "-c", "-f", str(path)], capture_output=True, text=True, timeout=30)
    assert read.returncode == 0, read.stderr
