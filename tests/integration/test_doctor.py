"""`shoal doctor` on the machine of a manager that works finds nothing wrong with it."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from kit import WAIT_S, run

from shoal.cli import main, probes
from shoal.cli.exits import Exit
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady


def _two_free_ports() -> int:
    """The first of two neighbours that are free."""
    for _ in range(50):
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
            return port
    pytest.skip("no two neighbouring ports are free")


def test_a_manager_that_works_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, port = tmp_path / "home", _two_free_ports()

    async def examined(of: Path) -> dict[str, dict[str, str]]:
        code = await asyncio.to_thread(main.run, ["doctor", "--json", "--home", str(of), "--port", str(port)])
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert code == Exit.OK, told
        return {check["check"]: check for check in told["checks"]}

    async def story() -> None:
        ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            run_home(ManagerOptions(home=home, port=port, name="lab"), on_ready=ready.set_result)
        )
        try:
            await asyncio.wait_for(ready, WAIT_S)
            assert probes.manager_runs(home)
            own = await examined(home)
            for number in (port, port + 1):
                assert own[f"port {number}"]["state"] == "ok"
                assert "this home's own manager" in own[f"port {number}"]["found"]
            # Asked with another home, as by another user: it is a manager still, and the answer says whose.
            other = await examined(tmp_path / "other")
            for number in (port, port + 1):
                assert other[f"port {number}"]["state"] == "warn"
                assert "a manager of cluster lab" in other[f"port {number}"]["found"]
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert not probes.manager_runs(home)

    run(story())


def test_another_program_on_the_port_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        assert probes.listen("0.0.0.0", port) == "busy"
        assert probes.cluster_at("127.0.0.1", port, timeout_s=0.3) == ""
