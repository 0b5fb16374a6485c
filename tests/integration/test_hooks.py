"""A manager with hooks: a device that is killed, and a command that is told of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kit import cluster_in, run

PROGRAM = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"


def test_a_command_is_told_of_a_lost_device_and_the_journal_of_a_hook_that_fails(tmp_path: Path) -> None:
    told = tmp_path / "told"
    home = tmp_path / "home"
    home.mkdir()
    words = json.dumps([sys.executable, "-c", PROGRAM, str(told)])
    file = home / "hooks.toml"
    file.write_text(
        f'[[hook]]\non = ["device.lost"]\ncommand = {words}\n\n'
        '[[hook]]\non = ["device.lost"]\ncommand = ["/no/such/program"]\n'
    )
    file.chmod(0o600)

    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            await site.kill(site.cluster.agents["device-1"])

            async def heard() -> dict[str, Any] | None:
                text = told.read_text() if told.exists() else ""
                return json.loads(text) if text.endswith("\n") else None

            event = await site.until("the command is told", heard)
            assert (event["event"], event["node"]) == ("device.lost", "device-1")
            assert event["reason"].startswith("device-1: ")
            failed = await site.event("cluster", "hook.failed", "command program: it could not be started")
            lost = await site.event("cluster", "device.lost", "device-1: ")
            assert event["seq"] == lost.seq < failed.seq
            log = (home / "manager.log").read_text()
            assert " WARNING hook.failed: command program: it could not be started" in log
            assert " INFO hook: command " in log

    run(story())
