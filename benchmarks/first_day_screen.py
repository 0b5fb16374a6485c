"""Cases of the first day that a person sees: the console, the demo without a network, the compose file, the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import yaml

from benchmarks.first_day_console import SCREENS, judge_failing, judge_models, judge_phone, judge_two_jobs, shown
from benchmarks.first_day_kit import ROOT, WAIT_S, Case, expect, expect_words, line_of, run, running

#: An address that nobody has: it is only looked for in what is built.
REPOSITORY = "https://forge.example/someone/shoal"


def offline_demo(folder: Path) -> str:
    """The demo in a network namespace with nothing but loopback, and no data on the disk."""
    entry = [sys.executable, "-m", "shoal.cli.main", "demo", "--workers", "2", "--json"]
    alone = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    program = [*alone, *entry] if os.geteuid() == 0 and shutil.which("unshare") else entry
    data = folder / "data"
    # A proxy that does not listen, where a namespace may not be made.
    closed = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1,localhost"} if program is entry else {}
    seen = run(
        program=program, cwd=folder, env={"SHOAL_DATA": str(data), "COLUMNS": "300"} | closed, within_s=4 * WAIT_S
    )
    expect(seen.code == 0, f"it ended with {seen.code}: {seen.text[-400:]}")
    told = json.loads(seen.out.strip().splitlines()[-1])
    expect(told["data"] == "made-up digits" and told["reached"], f"it trained {told['data']}: {told['accuracy']}")
    expect_words(seen.err, "MNIST cannot be downloaded", f"put its four .gz files into {data / 'mnist'}", "made-up")
    return line_of(seen.err, "made-up digits (not MNIST)")


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def compose_restarts(folder: Path) -> str:
    """Every service comes back after a reboot, and a missing join line is an error, not a directory."""
    for name, service in _compose().items():
        expect(service.get("restart") in ("always", "unless-stopped"), f"{name} has restart: {service.get('restart')}")
        for volume in service["volumes"]:
            source = volume.partition(":")[0] if isinstance(volume, str) else volume["source"]
            if isinstance(volume, str):
                expect(not source.startswith((".", "/")), f"{name}: Docker makes a directory of a missing {source}")
            else:
                expect(volume["bind"]["create_host_path"] is False, f"{name}: a missing {source} is made")
    page = (ROOT / "docs" / "operations" / "containers.md").read_text(encoding="utf-8")
    expect_words(page, *(f"docker compose up --detach {name}" for name in _compose()))
    return ", ".join(f"{name}: {service['restart']}" for name, service in _compose().items())


def compose_health(folder: Path) -> str:
    """The manager's check of health holds while a real manager runs, and not after it ended."""
    words = _compose()["manager"]["healthcheck"]["test"]
    expect(words[:2] == ["CMD", "shoal"], f"the check is {words}")
    home = folder / "home"
    home.mkdir()
    env = {"SHOAL_HOME": str(home)}
    with running("up", "--no-token", "--port", "7370", cwd=folder, log="up.log", env=env) as manager:
        manager.wait_for("7370")
        well = run(*words[2:], cwd=folder, env=env)
        expect(well.code == 0, f"a manager that runs is unhealthy: {well.text[-300:]}")
        os.killpg(manager.process.pid, signal.SIGKILL)
        manager.process.wait(WAIT_S)
    gone = run(*words[2:], cwd=folder, env=env)
    expect(gone.code != 0, "a manager that is dead is healthy")
    return f"`{' '.join(words[1:])}` gave {well.code}, and {gone.code} once the manager was dead"


def wheel_page(folder: Path) -> str:
    """The wheel of a release names author and addresses, and no link of its page is relative."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = run(program=build, cwd=ROOT, env={"SHOAL_REPOSITORY": REPOSITORY})
    expect(done.code == 0, f"the wheel was not built: {done.text[-400:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as parts:
        name = next(each for each in parts.namelist() if each.endswith(".dist-info/METADATA"))
        told = message_from_bytes(parts.read(name))
    urls = [str(each) for each in told.get_all("Project-URL", [])]
    expect(bool(told["Author"]) and len(urls) >= 3, f"author {told['Author']}, addresses {urls}")
    broken = relative_links(str(told.get_payload()))
    expect(not broken, f"{len(broken)} links of the page lead nowhere: {broken[:3]}")
    return f"by {told['Author']}; {', '.join(each.partition(',')[0] for each in urls)}"


def relative_links(page: str) -> list[str]:
    """Return the targets of links and pictures that work only inside a repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    return [target for target in targets if not target.startswith(("https://", "http://", "#"))]


def _on_a_phone(screen: str) -> Case:
    return Case(name=f"console-phone-{screen}", run=lambda folder: judge_phone(shown(), screen), slow=True)


CASES = (
    Case(name="console-while-every-device-fails", run=lambda folder: judge_failing(shown()), slow=True),
    Case(name="console-two-jobs", run=lambda folder: judge_two_jobs(shown()), slow=True),
    Case(name="console-nothing-published", run=lambda folder: judge_models(shown()), slow=True),
    *(_on_a_phone(screen) for screen in SCREENS),
    Case(name="demo-offline", run=offline_demo, slow=True),
    Case(name="compose-restart", run=compose_restarts),
    Case(name="compose-health", run=compose_health, slow=True),
    Case(name="wheel-page", run=wheel_page),
)
