"""Child processes: how they begin, what they are given, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from shoal.trainer import spawn as spawning
from shoal.trainer.spawn import child, command, end_process, environment, spawn

_CHILD = """
import os, signal, sys, time
match sys.argv[1]:
    case "told":
        print(os.environ["TOLD"], os.environ.get("KEPT"), os.getsid(0) == os.getpid())
    case "write":
        os.write(int(sys.argv[2]), b"through")
    case "wait" | "deaf":
        if sys.argv[1] == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("here", flush=True)
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spawned.py").write_text(_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("KEPT", "kept")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_has_the_environment_and_a_session_if_it_is_to() -> None:
    async def told(own_session: bool) -> bytes:
        process = await spawn("spawned", "told", stdout=PIPE, changes={"TOLD": "new"}, own_session=own_session)
        said, _ = await process.communicate()
        return said

    assert asyncio.run(told(False)) == b"new kept False\n"
    assert asyncio.run(told(True)) == b"new kept True\n"
    assert environment({"KEPT": "changed"})["KEPT"] == "changed"


def test_a_module_in_the_working_directory_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)

    async def code() -> int:
        return await (await spawn("spawned", "told", stderr=DEVNULL)).wait()

    assert asyncio.run(code()) == 1
    assert command("a.b", "--c")[1:] == ["-P", "-m", "a.b", "--c"]


def test_a_child_gets_open_files_under_their_numbers() -> None:
    async def written() -> bytes:
        with tempfile.TemporaryFile() as file:
            process = await spawn("spawned", "write", str(file.fileno()), fds=(file.fileno(),))
            assert await process.wait() == 0
            file.seek(0)
            return file.read()

    assert asyncio.run(written()) == b"through"


def test_a_child_ends_with_its_block() -> None:
    pids: list[int] = []

    async def left() -> None:
        async with child("spawned", "wait", stdin=DEVNULL, stdout=PIPE) as process:
            pids.append(process.pid)
            assert process.stdout is not None
            assert await process.stdout.readline() == b"here\n"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(left())
    assert not is_there(pids[0])


@pytest.mark.parametrize(("how", "code"), [("wait", -signal.SIGTERM), ("deaf", -signal.SIGKILL)])
def test_a_process_is_ended_politely_then_not(how: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "STOP_TIMEOUT_S", 10.0 if how == "wait" else 0.2)

    async def ended() -> int | None:
        process = await spawn("spawned", how, stdout=PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        # One that is stopped ends as well.
        process.send_signal(signal.SIGSTOP)
        await end_process(process)
        await end_process(process)
        return process.returncode

    assert asyncio.run(ended()) == code
