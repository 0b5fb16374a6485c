"""docs/five-pis.md, followed literally: a manager and five boards, each with a network of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import own_commands

from testbed.devices import Board, Testbed
from testbed.namespaces import why_no_namespaces

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import site_pages  # noqa: E402

WAIT_S = 180.0
BOARDS = ("pi1", "pi2", "pi3", "pi4", "pi5")


class Places:
    """Runs what a reader types: on the manager's machine, or on every board."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed = bed
        self.folder = folder
        for name in ("manager", *BOARDS):
            (folder / name).mkdir()
        self.told: dict[str, str] = {"ADDRESS": bed["manager"].address}
        self._staying: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        for process in self._staying:
            process.send_signal(signal.SIGTERM)
        for process in self._staying:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def type(self, where: str, text: str, *, stays: bool) -> str:
        """What it printed; of a command that stays, nothing."""
        names = BOARDS if where == "board" else ("manager",)
        return "".join([self._type_on(name, text, stays=stays) for name in names])

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _type_on(self, name: str, text: str, *, stays: bool) -> str:
        home = self.folder / name
        # As on a machine of its own: its own home, its own folder, nothing of this test's environment.
        env = {"PATH": f"{own_commands(home)}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", **self.told}
        command = self._bed[name].exec("sh", "-ec", text)
        if stays:
            with (self.folder / f"{name}.log").open("wb") as log:
                self._staying.append(subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log))
            return ""
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}{self.log('manager')[-1000:]}"
        return done.stdout


def until(what: str, found: re.Pattern[str], read) -> str:
    """The text once it is there."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if match := found.search(read()):
            return match[0]
        time.sleep(0.5)
    raise AssertionError(f"{what} was not seen within {WAIT_S:g} s:\n{read()[-2000:]}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_ends_with_a_model_that_predicts(tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    with Testbed([Board(name=name) for name in ("manager", *BOARDS)]) as bed:
        places = Places(bed, tmp_path)
        try:
            outputs = follow(places)
        finally:
            places.close()
    assert any(sum("alive" in line for line in output.splitlines()) >= len(BOARDS) for output in outputs)
    well, faulty = re.findall(r"(\d+)% likely a fault", outputs[-1])
    assert int(well) < 30
    assert int(faulty) > 70


def follow(places: Places) -> list[str]:
    """Everything that the page says to do, in its order; what each step printed."""
    outputs: list[str] = []
    for block in site_pages.blocks(ROOT, ROOT / "docs" / "five-pis.md"):
        if block.mark.startswith("not run: "):
            continue
        where = block.mark.partition(": ")[2]
        assert where, f"{block.page}:{block.line} says not where it is typed"
        if name := where.removeprefix("file ") if where.startswith("file ") else "":
            (places.folder / "manager" / name).write_text(block.text, encoding="utf-8")
            outputs.append("")
            continue
        machine, _, stays = where.partition(", ")
        outputs.append(places.type(machine, block.text, stays=bool(stays)))
        if machine == "manager" and stays:
            line = until("the line to join with", re.compile(r"shoal://\S+"), lambda: places.log("manager"))
            places.told["LINE"] = line
        elif machine == "board":
            for name in BOARDS:
                until(f"{name} connected", re.compile("connected"), lambda name=name: places.log(name))
    return outputs
