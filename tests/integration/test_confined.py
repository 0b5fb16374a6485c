"""A task that wants more than it may: real trainers, as root's children and as a plain user's, and an agent that stays.

The task asks its own model what to try: the test writes a number into the model, and ``loss`` does what has it.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

import shoal
from shoal.identity.identity import save_private_json
from shoal.trainer import cgroups
from shoal.trainer.confine import Limits, user_id
from shoal.trainer.host import TrainerError, TrainerHost
from shoal.trainer.sandbox import Room

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="most of it is Linux's")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

PYTHON = sys.executable
MEMORY_BYTES = 1_500_000_000

SAMPLE = """\
import json, os, socket, subprocess, sys, tempfile, time
import numpy as np
import torch
from torch import nn
from shoal.task import Task

HOARD = None

class Sample(Task):
    def __init__(self, key="", port=0, tool=""):
        self.key, self.port, self.tool = key, port, tool

    def model(self):
        self.net = nn.Linear(4, 3)
        return self.net

    def batch(self, x, y):
        return x, y

    def loss(self, output, y):
        tries = [self._nothing, self._tell, self._steal, self._call_out, self._write, self._rise, self._take_torch,
                 self._take_numpy, self._take_bytes, self._hoard, self._hang, self._multiply, self._litter,
                 self._give_up, self._shrink, self._share, self._make_files, self._name_memory, self._go_on,
                 self._cache]
        tries[round(self.net.bias[0].item())]()
        return nn.functional.cross_entropy(output, y)

    def _nothing(self):
        pass

    def _tell(self):
        status = open("/proc/self/status").read()
        print(json.dumps({"ids": os.getresuid(), "groups": os.getgroups(), "cwd": os.getcwd(),
                          "home": os.environ["HOME"], "temporary": tempfile.gettempdir(),
                          "no_new": "NoNewPrivs:\\t1" in status}), flush=True)

    def _steal(self):
        open(self.key).read()

    def _call_out(self):
        socket.create_connection(("127.0.0.1", self.port), 5)

    def _write(self):
        with open("big", "wb") as file:
            file.truncate(3_000_000_000)

    def _rise(self):
        print("rose to", subprocess.run([self.tool, "-u"], capture_output=True, text=True).stdout.strip(), flush=True)

    def _take_torch(self):
        torch.zeros(400_000_000)

    def _take_numpy(self):
        np.ones(200_000_000)

    def _take_bytes(self):
        bytearray(1_600_000_000)

    def _hoard(self):
        global HOARD
        for size in (1_000_000, 10_000, 100, 1):
            try:
                while True:
                    HOARD = (bytearray(size), HOARD)
            except MemoryError:
                pass
        HOARD = (bytearray(1_000_000), HOARD)

    def _hang(self):
        time.sleep(60)

    def _multiply(self):
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.2)

    def _litter(self):
        open("left", "w").write("x")
        tempfile.mkstemp()

    def _give_up(self):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
        os.abort()

    def _shrink(self):
        # Just before it answers the next command: the agent reads the update as soon as it has the answer.
        from shoal.trainer.channel import Channel
        send = Channel.send
        def shrink_and_send(channel, message):
            for name in os.listdir("/proc/self/fd"):
                try:
                    os.ftruncate(int(name), 0)
                except OSError:
                    pass
            send(channel, message)
        Channel.send = shrink_and_send

    def _share(self):
        import mmap
        shared = mmap.mmap(-1, 1_500_000_000)
        for at in range(0, len(shared), 4096):
            shared[at] = 1

    def _make_files(self):
        for number in range(3):
            descriptor = os.memfd_create(f"file-{number}")
            for _ in range(500):
                os.write(descriptor, bytes(1_000_000))

    def _name_memory(self):
        open("/dev/shm/shoal-left", "w").write("x")

    def _go_on(self):
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        print(child.pid, flush=True)

    def _cache(self):
        from torch._inductor.runtime.cache_dir_utils import cache_dir
        print(cache_dir(), flush=True)
"""
TRIES = [line.split()[1].split("(")[0].lstrip("_") for line in SAMPLE.splitlines() if line.startswith("    def ")][4:]
HANG_LINE = 1 + SAMPLE.splitlines().index("        time.sleep(60)")


def examples(count=32):
    chance = np.random.default_rng(0)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, 3, count)


def run(story):
    asyncio.run(asyncio.wait_for(story, 300))


@contextlib.asynccontextmanager
async def started(job, **limits):
    host = TrainerHost(limits=Limits(**{"memory_bytes": MEMORY_BYTES} | limits))
    loaded = await host.start(job)
    assert loaded.train_examples == 32
    try:
        yield host
    finally:
        await host.stop()


async def attempt(host, name, **options):
    """Let the task try this; what it printed."""
    host.shared.model[:] = TRIES.index(name)
    await host.train(0, [0], **options)
    # The log travels beside the answers.
    await asyncio.sleep(0.1)
    return host.last_words[-1] if host.last_words else ""


async def refused(host, name, reason, **options):
    with pytest.raises(TrainerError, match=reason) as failed:
        await attempt(host, name, **options)
    return failed.value


def rooms():
    return sorted(Path(tempfile.gettempdir()).glob("shoal-trainer-*"))


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    """A place for rooms that every user can reach and only this test uses."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/var/tmp") as place:
        Path(place).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setenv("TMPDIR", place)
        yield


def closed_above(path):
    """The outermost folder above it that only its owner may enter."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


@pytest.fixture
def open_python(tmp_path, monkeypatch):
    """A Python that any user can read, by which trainers are started from here on.

    Where it, its packages or Shoal lie in somebody's closed folder, they are shown at the same paths in a name space of
    mounts of its own; and so are the test's own files, which keep their rights.
    """
    places = (sys.base_prefix, sys.prefix, Path(shoal.__file__).parents[1], tmp_path)
    needs = sorted({Path(each).resolve() for each in places})
    closed = {need: top for need in needs if os.geteuid() == 0 and (top := closed_above(need)) is not None}
    wrapper = tmp_path / "python"
    start = f'exec ${{AS_USER}} {shlex.quote(PYTHON)} "$@"'
    with tempfile.TemporaryDirectory(dir="/var/tmp") as hold:
        if closed:
            steps = ["umask 022"]
            held = {need: shlex.quote(f"{hold}/{number}") for number, need in enumerate(closed)}
            steps += [f"mkdir {at} && mount --bind {shlex.quote(str(need))} {at}" for need, at in held.items()]
            steps += [f"mount -t tmpfs -o mode=711 tmpfs {shlex.quote(str(top))}" for top in sorted({*closed.values()})]
            for need, at in held.items():
                there = shlex.quote(str(need))
                steps.append(f"mkdir -p {there} && mount --move {at} {there} && rmdir {at}")
            inside = " && ".join([*steps, start])
            start = f'exec unshare --mount --propagation private sh -c {shlex.quote(inside)} sh "$@"'
        wrapper.write_text(f"#!/bin/sh\n{start}\n")
        wrapper.chmod(0o755)
        code = "import os, sys; os.setuid(int(sys.argv[1])); import shoal.trainer.confine, numpy"
        user = str(user_id("nobody")[0] if os.geteuid() == 0 else os.geteuid())
        tried = subprocess.run([wrapper, "-c", code, user], capture_output=True, text=True, timeout=180, check=False)
        if tried.returncode:
            pytest.skip(f"Python lies where nobody can read it, and cannot be shown elsewhere: {tried.stderr}")
        monkeypatch.setattr(sys, "executable", str(wrapper))
        yield str(wrapper)


@pytest.fixture
def key(tmp_path):
    """An agent's key, as the agent keeps it."""
    file = tmp_path / "home" / "node" / "identity.json"
    save_private_json(file, {"key": "secret"})
    return file


# Root's trainers --------------------------------------------------------------------------------------


@pytest.fixture
def rising_tool():
    """A program that says who runs it, and makes whoever runs it root, where nothing forbids that."""
    with tempfile.TemporaryDirectory() as folder:
        tool = Path(folder) / "id"
        shutil.copyfile("/usr/bin/id", tool)
        Path(folder).chmod(0o755)
        tool.chmod(0o4755)
        nobody = user_id("nobody")[0]
        done = subprocess.run([tool, "-u"], user=nobody, capture_output=True, text=True, timeout=10, check=True)
        if done.stdout.strip() != "0":
            pytest.skip("programs in /var/tmp give no rights here")
        yield tool


@pytest.mark.gate("confined task code")
@as_root
def test_roots_trainer_is_nobody_and_reaches_nothing(make_job, open_python, key, rising_tool, monkeypatch):
    # PyTorch sets it in a process that compiled something, such as the one that called shoal.fit.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(key.parent / "compiled"))
    user = user_id("nobody")[0]
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    job = make_job(SAMPLE, examples(), arguments={"key": str(key), "port": port, "tool": str(rising_tool)})
    close_data(job)

    async def story():
        async with started(job) as host:
            assert {"user nobody", "512 processes", "no new privileges"} <= set(host.confined)
            told = json.loads(await attempt(host, "tell"))
            assert told["ids"] == [user] * 3
            assert told["groups"] == []
            assert told["no_new"]
            assert psutil.Process(host.pid).uids().real == user
            (room,) = rooms()
            assert told["cwd"] == told["home"] == told["temporary"] == str(room / "work")
            await refused(host, "steal", "PermissionError")
            await refused(host, "write", "File too large")
            if "no network" in host.confined:
                await refused(host, "call_out", "Network is unreachable")
            assert await attempt(host, "rise") == f"rose to {user}"
            await attempt(host, "litter")
            assert (room / "work" / "left").exists()
            assert Path(await attempt(host, "cache")).parent == room / "work"
            assert (await host.evaluate(0, 32)).examples == 32
        assert not rooms()

    with server:
        run(story())


@as_root
def test_a_fork_bomb_is_bounded_and_ended(make_job, open_python):
    job = make_job(SAMPLE, examples())

    async def story():
        async with started(job, processes_max=60) as host:
            group = host.pid
            trying = asyncio.create_task(refused(host, "multiply", "no answer in 4 s", timeout_s=4.0))
            most = 0
            for _ in range(15):
                await asyncio.sleep(0.2)
                most = max(most, len(in_group(group)))
            await trying
            assert 5 < most <= 60
            for _ in range(50):
                if not in_group(group):
                    break
                await asyncio.sleep(0.1)
            assert not in_group(group)
            await host.start(job)
            await attempt(host, "nothing")

    run(story())


def close_data(job):
    """Keep the examples as a store keeps its blobs, in a folder that everyone can walk to."""
    for shard in job.train:
        os.chmod(shard, 0o600)


@as_root
def test_a_task_reads_the_data_of_its_own_job_alone(make_job, open_python):
    # In a folder that everyone can walk to: nothing but the modes of the files is in the way.
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    job = make_job(SAMPLE, examples(), arguments={"key": str(place / "0")})
    others = tuple(shutil.copyfile(shard, place / str(number)) for number, shard in enumerate(job.train))
    other_job = dataclasses.replace(job, train=tuple(map(str, others)))
    close_data(job)
    close_data(other_job)

    async def story():
        async with started(other_job) as host:
            # Trained here by the same user, at the same time.
            await attempt(host, "nothing")
            async with started(job) as beside:
                assert "user nobody" in beside.confined
                await refused(beside, "steal", "PermissionError")
                await attempt(beside, "nothing")
        for shard in (*job.train, *others):
            assert Path(shard).stat().st_mode & 0o777 == 0o600
            assert Path(shard).stat().st_gid == os.getgid()

    run(story())


def groups_left(names):
    """Control groups that bear the names of these rooms. Others may be those of trainers beside this test."""
    parents = [parent for kind in ("memory", "pids") for parent in cgroups._parents(kind)]
    return [parent / name for parent in parents for name in names if (parent / name).exists()]


@as_root
def test_memory_of_every_kind_counts_and_the_groups_are_removed(make_job):
    job = make_job(SAMPLE, examples())
    reason = "^the task wanted more than the 900 MB it may use"

    async def story():
        async with started(job, memory_bytes=900_000_000) as host:
            if "memory 900 MB" not in host.confined:
                pytest.skip(f"no control groups here: {host.confined}")
            names = [room.name for room in rooms()]
            assert groups_left(names)
            # One in a session of its own is no part of the process group that is ended.
            stray = int(await attempt(host, "go_on"))
            assert psutil.pid_exists(stray)
            await refused(host, "share", reason)
            assert not host.alive
            assert groups_left(names) == []
            await host.start(job)
            names = [room.name for room in rooms()]
            await refused(host, "make_files", reason)
        assert groups_left(names) == []
        assert not psutil.pid_exists(stray) or psutil.Process(stray).status() == psutil.STATUS_ZOMBIE

    run(story())


@as_root
def test_named_shared_memory_ends_with_the_trainer(make_job):
    job = make_job(SAMPLE, examples())

    async def story():
        async with started(job) as host:
            if "private /dev/shm" not in host.confined:
                pytest.skip(f"no view of its own here: {host.confined}")
            await attempt(host, "name_memory")
        assert not Path("/dev/shm/shoal-left").exists()  # noqa: S108

    run(story())


def in_group(group):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@as_root
def test_a_hang_of_another_users_trainer_is_located(make_job, open_python):
    job = make_job(SAMPLE, examples())

    async def story():
        async with started(job) as host:
            assert "user nobody" in host.confined
            hanging = asyncio.create_task(refused(host, "hang", "no answer in 2 s", timeout_s=2.0))
            await asyncio.sleep(0.5)
            where = f"Sample._hang (task.py:{HANG_LINE})"
            assert await host.where_is_it() == where
            assert (await hanging).where == where

    run(story())


@as_root
def test_another_users_trainer_dies_with_its_agent(make_job, open_python, tmp_path):
    job = make_job(SAMPLE, examples())
    (tmp_path / "job.json").write_text(json.dumps(job.to_message()))
    program = f"""
import asyncio, json, sys
from shoal.trainer.host import TrainerHost, TrainerSettings
sys.executable = {open_python!r}
async def story():
    host = TrainerHost()
    await host.start(TrainerSettings.from_message(json.load(open({str(tmp_path / "job.json")!r}))))
    host.shared.model[:] = {TRIES.index("hang")}
    print(host.pid, ", ".join(host.confined), flush=True)
    await host.train(0, [0])
asyncio.run(story())
"""
    with subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE, text=True) as agent:
        try:
            pid, words = agent.stdout.readline().split(" ", 1)
            assert "user nobody" in words
            assert psutil.pid_exists(int(pid))
        finally:
            agent.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE:
            break
        asyncio.run(asyncio.sleep(0.05))
    else:
        raise AssertionError("the trainer outlived its agent")
    # Its folder and its control groups are left, and the next trainer sweeps them up.
    (left,) = rooms()
    assert bool(groups_left([left.name])) == ("in each process" not in words)
    Room(job, Limits()).close()
    assert not rooms()
    assert groups_left([left.name]) == []


@as_root
def test_what_that_user_cannot_read_starts_no_task_unless_the_owner_allows_root(make_job, monkeypatch, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("PYTHONPATH", str(closed))
    job = make_job(SAMPLE, examples())

    async def story():
        host = TrainerHost()
        with pytest.raises(
            TrainerError, match=f"^a task does not run as root, and nobody cannot read {closed}. Install"
        ):
            await host.start(job)
        async with started(job, root=True) as host:
            assert host.confined[0].startswith(f"user root without capabilities (nobody cannot read {closed})")
            await attempt(host, "nothing")
            assert json.loads(await attempt(host, "tell"))["ids"] == [0, 0, 0]
            status = Path(f"/proc/{host.pid}/status").read_text()
            assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}

    run(story())


# Anyone's trainers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["nobody", ""])
def test_a_task_that_wants_too_much_memory_fails_in_words(make_job, open_python, user):
    job = make_job(SAMPLE, examples())
    reason = "^the task wanted more than the 1,500 MB it may use"

    async def story():
        async with started(job, user=user) as host:
            pid = host.pid
            for name in ("take_torch", "take_numpy", "take_bytes"):
                failed = await refused(host, name, reason)
                assert failed.where.startswith(f"Sample._{name} (task.py:")
            await attempt(host, "nothing")
            assert host.pid == pid
            # Filled to the brim, with small things that stay: Python has no memory left even to note the line.
            await refused(host, "hoard", reason)
            assert host.pid == pid
            await host.kill()
            await host.start(job)
            await attempt(host, "nothing")
            # As native code does where Python cannot help it.
            failed = await refused(host, "give_up", reason)
            assert failed.reason.endswith("it may use")
            assert failed.where.startswith("Sample._give_up (task.py:")
            assert not host.alive

    run(story())


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_task_that_cuts_the_shared_memory_short_does_not_end_its_agent(make_job, tmp_path, has_memfd):
    job = make_job(SAMPLE, examples())
    (tmp_path / "job.json").write_text(json.dumps(job.to_message()))
    program = f"""
import asyncio, json, os
from shoal.trainer.host import TrainerError, TrainerHost, TrainerSettings
if not {has_memfd}:
    del os.memfd_create
async def story():
    host = TrainerHost()
    job = TrainerSettings.from_message(json.load(open({str(tmp_path / "job.json")!r})))
    await host.start(job)
    host.shared.model[:] = {TRIES.index("shrink")}
    await host.train(0, [0])
    host.shared.model[:] = 0
    try:
        await host.train(0, [0])
        print("trained", host.shared.update.any())
    except TrainerError as failed:
        print(failed.reason)
    await host.kill()
    await host.start(job)
    host.shared.model[:] = 0
    await host.train(0, [0])
    print("lives", host.shared.update.any())
    await host.stop()
asyncio.run(story())
"""
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    first, last = done.stdout.splitlines()
    assert last == "lives True"
    # Where the memory is sealed the task achieves nothing.
    assert first == (
        "trained True" if has_memfd else "the memory that is shared with this process was cut short by the other one"
    )


def test_an_agent_without_root_trains_within_limits(make_job, open_python, tmp_path):
    job = make_job(SAMPLE, examples())
    place = Path(tempfile.mkdtemp())
    for path in (job.bundle_dir, Path(job.train[0]).parent):
        shutil.copytree(path, place / Path(path).name)
    message = json.dumps(job.to_message()).replace(str(Path(job.bundle_dir).parent), str(place))
    (place / "job.json").write_text(message)
    program = f"""
import asyncio, json, os
from shoal.trainer.host import TrainerError, TrainerHost, TrainerSettings
from shoal.trainer.confine import Limits
async def story():
    host = TrainerHost(limits=Limits(memory_bytes={MEMORY_BYTES}))
    await host.start(TrainerSettings.from_message(json.load(open({str(place / "job.json")!r}))))
    told = {{"words": host.confined, "user": os.getuid()}}
    for number in ({TRIES.index("nothing")}, {TRIES.index("write")}, {TRIES.index("take_torch")}):
        host.shared.model[:] = number
        try:
            await host.train(0, [0])
            told[number] = "done"
        except TrainerError as failed:
            told[number] = failed.reason
    await host.stop()
    print(json.dumps(told))
asyncio.run(story())
"""
    subprocess.run(["chmod", "-R", "a+rX", place], check=True, timeout=90)
    user, group = user_id("nobody")
    drop = f"setpriv --reuid {user} --regid {group} --clear-groups" if os.geteuid() == 0 else ""
    env = os.environ | {"AS_USER": drop}
    command = [open_python, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, env=env, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["user"] != 0
    assert {"processes not limited", "no new privileges", "network not cut (only root can)"} <= set(told["words"])
    assert any(word.startswith("memory 1,500 MB per process (shared memory") for word in told["words"])
    assert told[str(TRIES.index("nothing"))] == "done"
    assert "File too large" in told[str(TRIES.index("write"))]
    assert told[str(TRIES.index("take_torch"))].startswith("the task wanted more than the 1,500 MB it may use")
