"""`shoal console` as a whole: what it refuses to start with, TLS, and a home without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the console's packages are not installed: pip install '.[console]'")
pytest.importorskip("uvicorn", reason="the console's packages are not installed: pip install '.[console]'")

from browser import PATIENCE_S

from shoal.cli.main import run
from shoal.console.serve import ConsoleReady, Options, serve
from shoal.errors import Misuse
from shoal.extras import install_command
from shoal.identity.certificates import issue, new_authority, new_request
from shoal.identity.names import RemoteIdentity


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "192.0.2.7"}, "needs TLS: name --certificate and --key"),
        ({"host": "attic.lan"}, "needs TLS"),
        ({"host": "0.0.0.0", "certificate": Path("c"), "key": Path("k")}, "name the one that browsers will use"),
        ({"certificate": Path("c")}, "go together"),
        ({"allow": ("everything",)}, "name some of models, devices, jobs"),
    ],
)
def test_what_it_does_not_start_with(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Options(home=tmp_path, **options)


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["console", "--home", str(tmp_path), "--no-open"]) == 3
    assert "no cluster is operated from" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["console", "--home", str(tmp_path)]) == 2
    assert install_command("console") in capsys.readouterr().err
    assert run(["up", "--console", "--home", str(tmp_path)]) == 2
    assert install_command("console") in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = Options(home=tmp_path, port=taken.getsockname()[1])
        with pytest.raises(Misuse, match="choose another --port"):
            asyncio.run(serve(options, lambda ready: None))


def test_files_that_are_no_certificate_are_said(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("nothing")
    options = Options(home=tmp_path, port=0, certificate=tmp_path / "c.pem", key=tmp_path / "c.pem")
    with pytest.raises(Misuse, match="cannot be used"):
        asyncio.run(serve(options, lambda ready: None))


def test_tls_and_a_home_without_a_cluster(tmp_path: Path) -> None:
    authority = new_authority("home", valid_days=1, now_s=time.time())
    asked = new_request("page")
    named = RemoteIdentity(cluster="home", role="node", node="page")
    pem = issue(authority, asked.pem, named, serves=True, hosts=("127.0.0.1",), valid_days=1, now_s=time.time())
    (tmp_path / "c.pem").write_bytes(pem)
    (tmp_path / "k.pem").write_bytes(asked.key_pem)
    options = Options(home=tmp_path, port=0, certificate=tmp_path / "c.pem", key=tmp_path / "k.pem")
    context = ssl.create_default_context(cadata=authority.pem.decode())

    def browse(ready: ConsoleReady) -> dict[str, Any]:
        link = ready.new_link()
        assert link.startswith(f"https://127.0.0.1:{ready.port}/open?k=")
        connection = http.client.HTTPSConnection("127.0.0.1", ready.port, timeout=PATIENCE_S, context=context)
        with contextlib.closing(connection):
            connection.request("GET", link.partition(str(ready.port))[2])
            answer = connection.getresponse()
            answer.read()
            cookie, key = answer.headers["set-cookie"], answer.headers["location"].partition("#key=")[2]
            assert answer.status == 303
            assert cookie.startswith("__Host-shoal=")
            assert "; Secure" in cookie
            assert "strict-transport-security" in answer.headers
            known = {"cookie": cookie.partition(";")[0], "x-shoal-key": key}
            while True:
                connection.request("GET", "/api/state", headers=known)
                answer = connection.getresponse()
                body = answer.read()
                if answer.status == 200:
                    return dict(json.loads(body))
                assert answer.status == 503, body
                time.sleep(0.1)

    async def story() -> dict[str, Any]:
        ready: asyncio.Future[ConsoleReady] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(options, ready.set_result))
        try:
            return await asyncio.to_thread(browse, await ready)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    state = asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert state["cluster"]["manager"] == "unreachable"
    assert "no cluster is operated from" in state["cluster"]["sentence"]
