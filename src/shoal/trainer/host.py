"""The agent's side of the trainer: starts it, asks it, finds out where it hangs, ends it. No torch; all waits end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.trainer import protocol
from shoal.trainer.cgroups import ran_out_of_memory
from shoal.trainer.channel import Message
from shoal.trainer.confine import Limits, device_memory_bytes, says_no_memory, too_much_memory
from shoal.trainer.launch import REFUSED_CODE
from shoal.trainer.line import TrainerLine
from shoal.trainer.open_files import send_file, send_open
from shoal.trainer.processors import ALGORITHM_MODULE, ENGINES
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerError, TrainerSettings, TrainResult
from shoal.trainer.sandbox import Room
from shoal.trainer.shared import SharedVectors
from shoal.trainer.spawn import spawn
from shoal.trainer.where_is_it import place_in
from shoal.wire.limits import REASON_MAX_CHARS, TRACEBACK_MAX_CHARS
from shoal.wire.messages import clip

__all__ = ["EvalResult", "TaskLoaded", "TrainResult", "TrainerError", "TrainerHost", "TrainerSettings"]

#: The module that runs a task's code, and the modules that run what an operator sent. Any other module is Shoal's own
#: code, which needs the agent's files.
_TASK_MODULE = ENGINES["torch"]
_CONFINED = frozenset({*ENGINES.values(), ALGORITHM_MODULE})
#: Python and torch may take minutes to import from the SD card of a small board.
START_TIMEOUT_S = 300.0
#: Only bounds the wait: the leader's lease ends long before.
ANSWER_TIMEOUT_S = 3600.0
STOP_TIMEOUT_S = 5.0
DUMP_TIMEOUT_S = 2.0
_DUMP_POLL_S = 0.02

_LAST_WORDS_LINES = 50
_LINE_MAX_CHARS = 500

_HINTS = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGILL: " (this build of PyTorch does not suit the processor)",
}

_T = TypeVar("_T")


class TrainerHost:
    """One trainer process at a time. After a failure, ``start`` makes a new one."""

    def __init__(
        self,
        *,
        child_module: str = _TASK_MODULE,
        start_timeout_s: float = START_TIMEOUT_S,
        limits: Limits | None = None,
        rooms: Path | None = None,
    ) -> None:
        self._child_module = child_module
        self._start_timeout_s = start_timeout_s
        #: Limits of a process, or `None` to read them from the environment when one starts.
        self._limits = limits
        #: Where each process gets its own folder, unless it runs as another user, who could not reach a folder there.
        self._rooms = rooms
        self._confined: tuple[str, ...] = ()
        self._running: _Running | None = None
        self._shared: SharedVectors | None = None
        self._bundle_dir = ""
        #: The folder in which the process finds the task's code, which may be a copy that ends with the process.
        self._copied_to = ""
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS_LINES)
        self._asking = asyncio.Lock()
        self._seq = 0
        self._questions = 0

    @property
    def shared(self) -> SharedVectors:
        """Write ``shared.model`` before ``train`` or ``evaluate``; read ``shared.update`` after ``train``.

        ``shared.own`` holds the device's own part of the model as a lease begins, ``shared.own_after`` as it ends.

        The memory outlives the process: it is valid until ``stop`` or the next ``start``. Write to it only between two
        answers.
        """
        if self._shared is None:
            raise Misuse("the trainer was never started: call start() first")
        return self._shared

    @property
    def alive(self) -> bool:
        """Whether the process can take commands."""
        return self._running is not None and self._running.process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._running.process.pid if self._running else None

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines that any part of the process printed."""
        return tuple(self._last_words)

    @property
    def confined(self) -> tuple[str, ...]:
        """The limits of the process as readable text, as it reported them when it started."""
        return self._confined

    async def start(self, settings: TrainerSettings) -> TaskLoaded:
        """Start the process and load the task. If this raises, no process is left."""
        if self._running is not None:
            raise Misuse("the trainer already runs: stop() or kill() it first")
        settings = _with_absolute_paths(settings)
        limits = self._limits or Limits.from_environment(os.environ, device_bytes=device_memory_bytes())
        limits = limits.narrowed(memory_bytes=settings.memory_max_bytes, nice=settings.nice)
        if self._child_module not in _CONFINED:
            limits = limits.for_own_code()
        self._last_words.clear()
        self._renew_shared(settings.layout.size, settings.own_size)
        # In a thread: it copies the task's code, and sweeps up after agents that were killed.
        room = await asyncio.to_thread(Room, settings, limits, self._rooms)
        self._bundle_dir, self._copied_to = settings.bundle_dir, room.settings.bundle_dir
        settings = room.settings
        try:
            self._running = await _Running.spawn(self._child_module, self.shared.fd, room, self._last_words)
        except BaseException:
            room.close()
            raise
        try:
            ready = await self._expect(self._running, "ready", self._start_timeout_s)
            self._confined = _words(ready.get("confined"))
            loaded = await self._ask(settings.to_message(), "loaded", self._start_timeout_s)
            # The first model's own part, with which a device begins that has none yet.
            self.shared.take()
            self.shared.own[:] = self.shared.own_after
            return self._sound(protocol.read_loaded, loaded)
        except BaseException:
            await self.kill()
            raise

    async def train(
        self,
        epoch: int,
        batches: list[int] | tuple[int, ...],
        *,
        rate: float = 0.0,
        version: int = 0,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> TrainResult:
        """Train these batches, one after the other, from ``shared.model``; what changed is in ``shared.update``.

        ``rate`` is the learning rate, or 0 for that of the settings. ``version`` is the number of the model.
        """
        command = {"kind": "train", "epoch": epoch, "batches": batches, "rate": float(rate), "version": version}
        return await self._train(command, timeout_s)

    async def learn(
        self,
        epoch: int,
        lease: int,
        examples: int,
        *,
        rate: float = 0.0,
        version: int = 0,
        deadline_s: float = 0.0,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> TrainResult:
        """Train like ``train``, but on this many of the device's own examples. ``deadline_s`` is when the lease is due,
        or 0 for any time."""
        command = {"kind": "learn", "epoch": epoch, "lease": lease, "examples": examples, "deadline_s": deadline_s}
        return await self._train(command | {"rate": float(rate), "version": version}, timeout_s)

    async def count(self, *, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
        """Return how many examples to train on there are now, since a device's own may become more."""
        told = await self._ask({"kind": "count"}, "loaded", timeout_s)
        return self._sound(protocol.read_loaded, told).train_examples

    async def evaluate(self, start: int, stop: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> EvalResult:
        """Evaluate ``shared.model`` on held-out examples ``start`` to ``stop`` (not included)."""
        command = {"kind": "evaluate", "start": start, "stop": stop}
        return self._sound(protocol.read_evaluated, await self._ask(command, "evaluated", timeout_s))

    async def open_shard(self, number: int, path: Path) -> None:
        """Hand over a shard of the training examples that has arrived. The process gets the open file, not a path."""
        if self._running is None:
            raise TrainerError("the trainer does not run: start() it first")
        with contextlib.suppress(ConnectionError):
            send_file(self._running.files, number, path)
        await self._ask({"kind": "open", "shard": number}, "opened", ANSWER_TIMEOUT_S)

    async def consult(self, question: Message, memory: int, *, timeout_s: float) -> Message:
        """Put a question to an algorithm (``algorithm_wire``). ``memory`` is the open file with its arrays."""
        if self._running is None:
            raise TrainerError("the algorithm's process does not run: start() it first")
        self._questions += 1
        with contextlib.suppress(ConnectionError):
            send_open(self._running.files, self._questions, memory)
        return await self._ask(question | {"number": self._questions}, "consulted", timeout_s)

    async def shut_shard(self, number: int) -> None:
        """Have the process unmap a shard, so that its file can be removed: a mapped file keeps its disk space."""
        await self._ask({"kind": "shut", "shard": number}, "shut", ANSWER_TIMEOUT_S)

    async def stop(self) -> None:
        """Ask the process to end, insist after a few seconds, and give the shared memory back. Safe to call twice."""
        if self._running is not None:
            self._running.answers.send({"kind": "stop"})
            await self._running.exited(STOP_TIMEOUT_S)
            await self.kill()
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    async def kill(self) -> None:
        """End the process and whatever it started, now. Safe to call twice; ``shared`` stays readable."""
        if self._running is not None:
            self._running.ended_on_request = True
            await self._discard(self._running)

    async def where_is_it(self) -> str:
        """Return the line of the task's code that runs right now, such as ``Digits.loss (task.py:17)``."""
        return await self._where_is(self._running)

    async def _where_is(self, running: _Running | None) -> str:
        if running is None or running.process.returncode is not None:
            return "nowhere: the trainer does not run"
        if not running.ready:
            return "the start of Python"
        dump = await running.dump()
        return self._place_in(dump.splitlines()) or "no line of Python: it does not answer signals"

    def _place_in(self, dump: Iterable[str]) -> str:
        ours = (line.replace(self._copied_to, self._bundle_dir) for line in dump)
        return place_in(ours, self._bundle_dir)

    async def _train(self, command: Message, timeout_s: float) -> TrainResult:
        result = self._sound(protocol.read_trained, await self._ask(command, "trained", timeout_s))
        try:
            self.shared.take()
        except Corrupt as error:
            await self.kill()
            raise TrainerError(str(error)) from None
        return result

    async def _ask(self, command: Message, kind: str, timeout_s: float) -> Message:
        async with self._asking:
            if self._running is None:
                raise TrainerError("the trainer does not run: start() it first")
            self._seq += 1
            self.shared.give()
            command["seq"] = self._seq
            self._running.answers.send(command)
            return await self._expect(self._running, kind, timeout_s)

    async def _expect(self, running: _Running, kind: str, timeout_s: float) -> Message:
        """Wait for the answer to the last command; skip those to commands whose caller gave up."""
        due_s = asyncio.get_running_loop().time() + timeout_s
        try:
            message = await running.answers.get(due_s)
            while message is not None and message.get("seq", self._seq) != self._seq:
                message = await running.answers.get(due_s)
        except TimeoutError:
            where = await self._where_is(running)
            await self._discard(running)
            raise TrainerError(f"the trainer gave no answer in {timeout_s:g} s and was ended", where) from None
        if message is None:
            raise await self._end_of(running)
        running.ready = True
        if message["kind"] == "failed":
            reason, where, told = (str(message.get(name, "")) for name in ("reason", "where", "traceback"))
            raise TrainerError(reason[:REASON_MAX_CHARS], where[:500], clip(told, TRACEBACK_MAX_CHARS))
        if message["kind"] != kind:
            await self._discard(running)
            raise TrainerError(f"the trainer answered {message['kind']!r} where {kind!r} was due")
        return message

    def _sound(self, read: Callable[[Message], _T], message: Message) -> _T:
        try:
            return read(message)
        except PeerViolation as error:
            raise TrainerError(str(error)) from None

    async def _end_of(self, running: _Running) -> TrainerError:
        """Return why the process ended, from its exit status and its last output."""
        if running.ended_on_request:
            return TrainerError("the trainer was ended on request")
        code = await running.exited(STOP_TIMEOUT_S)
        was_too_large = code == -signal.SIGKILL and running.ran_out_of_memory()
        await self._discard(running)
        where = self._place_in(self._last_words)
        if was_too_large:
            return TrainerError(too_much_memory(running.memory_bytes), where)
        if code == REFUSED_CODE and self._last_words:
            return TrainerError(self._last_words[-1])
        # Native code that gets no memory ends the process itself; what it printed shows why.
        gave_up = code is not None and (code > 0 or code == -signal.SIGABRT)
        if gave_up and running.memory_bytes and any(map(says_no_memory, self._last_words)):
            return TrainerError(too_much_memory(running.memory_bytes), where)
        if code is None:
            return TrainerError("the trainer broke its protocol and was ended", where)
        # A process that dies in native code prints its stack.
        words = clip("\n".join(self._last_words)[-TRACEBACK_MAX_CHARS:], TRACEBACK_MAX_CHARS)
        if code >= 0:
            said = f": {self._last_words[-1]}" if self._last_words else ""
            return TrainerError(f"the trainer ended by itself with code {code}{said}", where, words)
        with contextlib.suppress(ValueError):
            number = signal.Signals(-code)
            return TrainerError(f"the trainer was killed by {number.name}{_HINTS.get(number, '')}", where, words)
        return TrainerError(f"the trainer was killed by signal {-code}", where)

    async def _discard(self, running: _Running) -> None:
        """End this process and no other: by now a new one may have been started in its place."""
        if self._running is running:
            self._running = None
        await running.close()

    def _renew_shared(self, size: int, own: int = 0) -> None:
        if self._shared is not None:
            self._shared.close()
        self._shared = SharedVectors.create(size, own)


class _Running:
    """A live process with its socket, its log and its stack file."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        stacks: BinaryIO,
        answers: TrainerLine,
        log: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        files: socket.socket,
        last_words: deque[str],
        room: Room,
    ) -> None:
        self.process = process
        #: The socket for open files that the process has no right to open.
        self.files = files
        self.memory_bytes = room.limits.memory_bytes
        self._room = room
        self.ready = False
        self.ended_on_request = False
        self.answers = answers
        self._closed = False
        self._stacks = stacks
        self._log_writer = log[1]
        self._last_words = last_words
        self._log_task = asyncio.create_task(self._read_log(log[0]))
        self._watch_task = asyncio.create_task(self._watch())

    @classmethod
    async def spawn(cls, module: str, shared_fd: int, room: Room, last_words: deque[str]) -> _Running:
        threads = room.settings.torch_threads
        ours, theirs = socket.socketpair()
        log_ours, log_theirs = socket.socketpair()
        files_ours, files_theirs = socket.socketpair()
        files_ours.setblocking(False)
        # In append mode, so that dumps land at the end after this side has truncated the file.
        stacks: BinaryIO = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115
        fds = {"socket": theirs.fileno(), "shared": shared_fd, "stacks": stacks.fileno()}
        fds["files"] = files_theirs.fileno()
        _, answers = await asyncio.get_running_loop().create_unix_connection(TrainerLine, sock=ours)
        log = await asyncio.open_unix_connection(sock=log_ours)
        try:
            with theirs, log_theirs, files_theirs:
                process = await spawn(
                    *("shoal.trainer.launch", str(room.plan), module),
                    *(part for name, fd in fds.items() for part in (f"--{name}-fd", str(fd))),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=log_theirs.fileno(),
                    fds=tuple(fds.values()),
                    own_session=True,
                    # Set before torch loads: OpenMP reads it once, and would take every core.
                    changes={
                        "OMP_NUM_THREADS": str(threads),
                        "MKL_NUM_THREADS": str(threads),
                        # Threads that wait for each other sleep: on a busy machine they would spin away its cores.
                        "OMP_WAIT_POLICY": "PASSIVE",
                    },
                )
        except BaseException:
            for open_file in (answers, log[1], stacks, files_ours):
                open_file.close()
            raise
        return cls(process, stacks, answers, log, files_ours, last_words, room)

    async def exited(self, timeout_s: float) -> int | None:
        """Wait for the process to end. Return its exit status, or None if it still runs after ``timeout_s``."""
        return await _bounded(self.process.wait(), timeout_s)

    def ran_out_of_memory(self) -> bool:
        return ran_out_of_memory(self._room.groups)

    async def close(self) -> None:
        """End the process group and release everything. A caller that still waits for an answer gets None."""
        if self._closed:
            return
        self._closed = True
        # The whole group, even if its first process has ended: data loaders and the like must not stay.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.exited(STOP_TIMEOUT_S)
        await _bounded(asyncio.wait([self._log_task]), 1.0)
        for task in (self._watch_task, self._log_task):
            task.cancel()
        await asyncio.gather(self._watch_task, self._log_task, return_exceptions=True)
        self._log_writer.close()
        with contextlib.suppress(OSError):
            await _bounded(self._log_writer.wait_closed(), 1.0)
        self._stacks.close()
        self.files.close()
        await asyncio.to_thread(self._room.close)
        self.answers.close()

    async def dump(self) -> str:
        """Return every thread's stack, as the process writes it on SIGUSR1, or "" if it does not react."""
        fd = self._stacks.fileno()
        os.ftruncate(fd, 0)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        before_bytes = 0
        for _ in range(int(DUMP_TIMEOUT_S / _DUMP_POLL_S)):
            await asyncio.sleep(_DUMP_POLL_S)
            size_bytes = os.fstat(fd).st_size
            if size_bytes and size_bytes == before_bytes:
                break
            before_bytes = size_bytes
        return os.pread(fd, 1 << 20, 0).decode(errors="replace")

    async def _watch(self) -> None:
        """End the line when the process ends, once its answers are read: a grandchild may hold the socket open."""
        await self.process.wait()
        await asyncio.sleep(0.1)
        self.answers.end()

    async def _read_log(self, reader: asyncio.StreamReader) -> None:
        rest = ""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 14):
                *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
                self._last_words.extend(line[:_LINE_MAX_CHARS] for line in lines)
                rest = rest[-_LINE_MAX_CHARS:]
        if rest:
            self._last_words.append(rest)


async def _bounded(waiting: Awaitable[_T], timeout_s: float) -> _T | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        return None


def _words(said: object) -> tuple[str, ...]:
    """Return the lines that a process reports about itself, bounded, since they go to the log."""
    return tuple(str(word)[:_LINE_MAX_CHARS] for word in said[:16]) if isinstance(said, list) else ()


def _with_absolute_paths(settings: TrainerSettings) -> TrainerSettings:
    return dataclasses.replace(
        settings,
        bundle_dir=os.path.abspath(settings.bundle_dir),
        train=tuple(map(os.path.abspath, settings.train)),
        test=tuple(map(os.path.abspath, settings.test)),
        base=tuple(map(os.path.abspath, settings.base)),
        graphs=os.path.abspath(settings.graphs) if settings.graphs else "",
        initial=os.path.abspath(settings.initial) if settings.initial else "",
    )
