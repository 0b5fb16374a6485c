"""The trainer as a real process: trained, killed, hung, crashed and started again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from shoal.errors import Misuse
from shoal.learning.figures import value
from shoal.learning.layout import Layout
from shoal.trainer.echo import UPDATE_VALUE
from shoal.trainer.host import TrainerError, TrainerHost, TrainerSettings

SAMPLE = """\
import os, signal, sys, time
import torch
from torch import nn
from shoal.task import Task

class Sample(Task):
    def model(self):
        return nn.Linear(4, 3)

    def batch(self, x, y):
        return x, y

    def loss(self, output, y):
        {fault}
        return nn.functional.cross_entropy(output, y)
"""
#: The line of SAMPLE at which a fault stands.
LINE = 14


def sample(fault="pass"):
    return SAMPLE.format(fault=fault)


def examples(count=32):
    chance = np.random.default_rng(0)
    return chance.normal(size=(count, 4)).astype(np.float32), chance.integers(0, 3, count)


@contextlib.asynccontextmanager
async def started(job, **options):
    host = TrainerHost(**options)
    loaded = await host.start(job)
    try:
        host.shared.model[:] = 0.01
        yield host, loaded
    finally:
        await host.stop()


def run(story):
    asyncio.run(asyncio.wait_for(story, 300))


def gone(pid):
    """Wait, with an end, until a process has died (a zombie of another parent counts as dead)."""
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def _loss(judged):
    return next(value(each) for each in judged.metrics if each.name == "loss")


def test_a_trainer_trains_and_evaluates(make_job):
    job = make_job(sample(), examples(), batch_size=8)

    async def story():
        async with started(job) as (host, loaded):
            assert (loaded.train_examples, loaded.test_examples) == (32, 32)
            assert loaded.engine.startswith("torch ")
            before = await host.evaluate(0, 32)
            for epoch in range(5):
                result = await host.train(epoch, [0, 1, 2, 3])
                assert (result.examples, result.finite) == (32, True)
                host.shared.model += host.shared.update
            after = await host.evaluate(0, 32)
            assert _loss(after) < _loss(before)
            assert os.getpgid(host.pid) == host.pid != os.getpgid(0)
            pid = host.pid
        assert gone(pid)

    run(story())


def test_prints_do_not_break_the_protocol(make_job):
    fault = "print('hello from', os.getpid()); os.write(1, b'raw\\n'); sys.stderr.write('x' * 5000 + '\\n')"
    job = make_job(sample(fault), examples())

    async def story():
        async with started(job) as (host, _):
            for _ in range(3):
                assert (await host.train(0, [0])).finite
            await asyncio.sleep(0.1)
            assert f"hello from {host.pid}" in host.last_words
            assert "raw" in host.last_words

    run(story())


def test_an_exception_of_the_task_names_its_line_and_the_trainer_lives_on(make_job):
    job = make_job(sample("if len(y) == 2: raise ValueError('two is too few')"), examples(10))

    async def story():
        async with started(job) as (host, _):
            with pytest.raises(TrainerError) as failed:
                await host.train(0, [1])
            assert failed.value.reason == "ValueError: two is too few"
            assert failed.value.where == f"Sample.loss (task.py:{LINE})"
            assert (await host.train(0, [0])).examples == 8

    run(story())


def test_an_error_inside_torch_names_the_line_of_the_task_that_led_there(make_job):
    job = make_job(sample("torch.zeros(2) @ torch.zeros(3)"), examples())

    async def story():
        async with started(job) as (host, _):
            with pytest.raises(TrainerError, match="RuntimeError") as failed:
                await host.train(0, [0])
            assert failed.value.where == f"Sample.loss (task.py:{LINE})"

    run(story())


def test_leaving_by_sys_exit_is_a_failure_of_the_task_not_of_the_trainer(make_job):
    job = make_job(sample("sys.exit('enough')"), examples())

    async def story():
        async with started(job) as (host, _):
            with pytest.raises(TrainerError, match="SystemExit: enough"):
                await host.train(0, [0])
            assert host.alive

    run(story())


@pytest.mark.parametrize(
    ("source", "reason", "where"),
    [
        ("import no_such_thing\n", "No module named 'no_such_thing'", "<module> (task.py:1)"),
        ("x = 1\ndef broken(:\n", "SyntaxError", "task.py:2"),
        ("x = 1\n", "defines no task Sample", ""),
    ],
)
def test_a_task_that_cannot_be_loaded(make_job, source, reason, where):
    job = make_job(source, examples(), layout=Layout.of([("w", (1,), "parameter")]))

    async def story():
        host = TrainerHost()
        with pytest.raises(TrainerError) as failed:
            await host.start(job)
        assert reason in failed.value.reason
        if where:
            assert failed.value.where == where
        assert not host.alive
        await host.stop()

    run(story())


def test_a_killed_trainer_is_noticed_and_a_new_one_starts(make_job):
    job = make_job(sample("time.sleep(60)"), examples())

    async def story():
        async with started(job) as (host, _):
            training = asyncio.create_task(host.train(0, [0]))
            await asyncio.sleep(0.3)
            began_s = time.monotonic()
            os.kill(host.pid, signal.SIGKILL)
            with pytest.raises(TrainerError, match=r"killed by SIGKILL \(out of memory\?\)"):
                await training
            assert time.monotonic() - began_s < 5
            assert not host.alive
            # The model outlives the process that used it.
            assert host.shared.model.tolist() == pytest.approx([0.01] * 15)
            with pytest.raises(TrainerError, match="does not run"):
                await host.train(0, [0])
            await host.start(job)
            assert host.alive

    run(story())


def test_a_crash_in_c_names_the_signal_and_the_line(make_job):
    job = make_job(sample("os.kill(os.getpid(), signal.SIGSEGV); time.sleep(5)"), examples())

    async def story():
        async with started(job) as (host, _):
            with pytest.raises(TrainerError, match="SIGSEGV") as failed:
                await host.train(0, [0])
            assert failed.value.where == f"Sample.loss (task.py:{LINE})"

    run(story())


@pytest.mark.parametrize("fault", ["while True: pass", "time.sleep(60)"])
def test_a_hang_is_located_by_name_and_ended(make_job, fault):
    job = make_job(sample(fault), examples())

    async def story():
        async with started(job) as (host, _):
            training = asyncio.create_task(host.train(0, [0], timeout_s=2.0))
            await asyncio.sleep(0.5)
            assert await host.where_is_it() == f"Sample.loss (task.py:{LINE})"
            pid = host.pid
            with pytest.raises(TrainerError, match="no answer in 2 s") as failed:
                await training
            assert failed.value.where == f"Sample.loss (task.py:{LINE})"
            assert gone(pid)
            assert await host.where_is_it() == "nowhere: the trainer does not run"

    run(story())


def test_a_stopped_process_does_not_hold_up_the_agent(make_job):
    job = make_job(sample(), examples())

    async def story():
        async with started(job) as (host, _):
            os.kill(host.pid, signal.SIGSTOP)
            with pytest.raises(TrainerError, match="does not answer signals"):
                await host.train(0, [0], timeout_s=0.5)
            assert not host.alive

    run(story())


def test_whatever_the_task_started_ends_with_the_trainer(make_job):
    fault = "import subprocess; print('grandchild', subprocess.Popen(['sleep', '60']).pid, flush=True)"
    job = make_job(sample(fault), examples())

    async def story():
        async with started(job) as (host, _):
            await host.train(0, [0])
            await host.kill()
            (grandchild,) = [words.split()[1] for words in host.last_words if words.startswith("grandchild")]
            assert gone(int(grandchild))

    run(story())


def test_an_end_on_request_reaches_whoever_waits_and_spares_the_next_process(make_job):
    job = make_job(sample("time.sleep(60)"), examples())

    async def story():
        async with started(job) as (host, _):
            training = asyncio.create_task(host.train(0, [0]))
            await asyncio.sleep(0.3)
            await host.kill()
            starting = asyncio.create_task(host.start(job))
            with pytest.raises(TrainerError, match="on request"):
                await training
            await starting
            assert host.alive

    run(story())


def test_an_abandoned_answer_is_not_taken_for_the_next(make_job):
    job = make_job(sample("time.sleep(0.4 if len(y) == 8 else 0)"), examples(10))

    async def story():
        async with started(job) as (host, _):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(host.train(0, [0]), 0.1)
            assert (await host.train(0, [1])).examples == 2

    run(story())


PARENT = """
import asyncio, sys, time
from shoal.learning.layout import Layout
from shoal.trainer.host import TrainerHost, TrainerSettings

async def story():
    host = TrainerHost(child_module="shoal.trainer.echo")
    layout = Layout.of([("w", (9,), "parameter")])
    settings = TrainerSettings(bundle_dir=".", entry="task:Sample", train=(), layout=layout, seed=0, batch_size=1,
                               learning_rate=0.1, pace_s=60)
    await host.start(settings)
    training = asyncio.create_task(host.train(0, [0]))
    await asyncio.sleep(0.2)
    print(host.pid, flush=True)
    await training

asyncio.run(story())
"""


def test_a_trainer_dies_with_its_agent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as agent:
        try:
            trainer = int(agent.stdout.readline())
            assert psutil.pid_exists(trainer)
        finally:
            agent.kill()
    assert gone(trainer)


def echo_settings(size=1000, **settings):
    layout = Layout.of([("w", (size,), "parameter")])
    plain = {"bundle_dir": ".", "entry": "task:Sample", "train": (), "layout": layout, "seed": 0}
    return TrainerSettings(**plain | {"batch_size": 4, "learning_rate": 0.1} | settings)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system keeps no process to some of its cores")
def test_a_trainer_keeps_to_its_cores():
    core = max(os.sched_getaffinity(0))

    async def story():
        async with started(echo_settings(cores=(core,)), child_module="shoal.trainer.echo") as (host, _):
            assert os.sched_getaffinity(host.pid) == {core}
        async with started(echo_settings(), child_module="shoal.trainer.echo") as (host, _):
            assert os.sched_getaffinity(host.pid) == os.sched_getaffinity(0)

    run(story())


def test_echo_answers_without_torch_and_at_its_pace():
    async def story():
        settings = echo_settings(pace_s=0.05)
        async with started(settings, child_module="shoal.trainer.echo") as (host, loaded):
            assert loaded.engine == "echo"
            result = await host.train(0, [0, 1, 2, 3])
            assert result.examples == 16
            assert result.seconds >= 0.2
            assert set(host.shared.update.tolist()) == {UPDATE_VALUE}
            maps = psutil.Process(host.pid).memory_maps() if sys.platform == "linux" else []
            assert not [each for each in maps if "libtorch" in each.path]

    run(story())


def test_the_host_itself_never_imports_torch():
    modules = "shoal.trainer.host, shoal.trainer.echo, shoal.trainer.bundle, shoal.trainer.prepared_job"
    # Each name of shoal.data is loaded with its module.
    code = f"import sys, {modules}; from shoal.data import *; assert mnist; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=180, check=False).returncode == 0


def test_limits_are_taken(make_job):
    job = make_job(sample("torch.empty(1 << 36)"), examples(), memory_max_bytes=8 << 30, nice=3)

    async def story():
        async with started(job) as (host, _):
            assert psutil.Process(host.pid).nice() == psutil.Process().nice() + 3
            with pytest.raises(TrainerError, match="memory"):
                await host.train(0, [0])
            assert host.alive

    run(story())


def test_start_twice_and_use_before_start():
    async def story():
        host = TrainerHost(child_module="shoal.trainer.echo")
        with pytest.raises(Misuse, match="never started"):
            _ = host.shared
        await host.start(echo_settings())
        with pytest.raises(Misuse, match="already runs"):
            await host.start(echo_settings())
        await host.stop()
        await host.stop()
        await host.start(echo_settings())
        await host.stop()

    run(story())


def test_a_module_that_is_no_trainer_fails_with_its_last_words():
    async def story():
        host = TrainerHost(child_module="shoal.no_such_module")
        with pytest.raises(TrainerError, match=r"No module named shoal\.no_such_module"):
            await host.start(echo_settings())
        assert not host.alive
        await host.stop()

    run(story())
