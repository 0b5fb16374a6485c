"""The trainer's process: take commands, answer them, say where code failed, die with the agent. No torch here."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, TypedDict, runtime_checkable

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.trainer.channel import Channel, Message
from shoal.trainer.confine import Reserve, says_no_memory, too_much_memory
from shoal.trainer.guard import TRAINER_VARIABLE
from shoal.trainer.open_files import receive_file
from shoal.trainer.processors import keep_to
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, answer
from shoal.trainer.shared import SharedVectors
from shoal.wire.limits import REASON_MAX_CHARS, TRACEBACK_MAX_CHARS

_PR_SET_PDEATHSIG = 1


class Trainer(Protocol):
    """What a trainer process serves. The model comes in, and the update goes out, by shared memory.

    ``rate`` is the learning rate of a lease, or 0 for that of the settings. ``version`` is the number of the model.
    """

    def loaded(self) -> TaskLoaded:
        """Return what is there now: the device's own examples are counted again."""
        ...

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult: ...
    def evaluate(self, start: int, stop: int) -> EvalResult: ...


@runtime_checkable
class Learner(Protocol):
    """A trainer that also learns from the device's local examples."""

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult: ...


@runtime_checkable
class ShardReader(Protocol):
    """A trainer whose examples come shard by shard, while it runs."""

    def open_shard(self, number: int, file: BinaryIO) -> None: ...
    def shut_shard(self, number: int) -> None: ...


@runtime_checkable
class Consulted(Protocol):
    """An algorithm's process, which answers the questions of a leader."""

    def consult(self, message: Message, memory: BinaryIO) -> Message: ...


@runtime_checkable
class Timed(Protocol):
    """A learner that can end a lease early."""

    def due_in(self, deadline_s: float) -> None:
        """Set how many seconds after its start the next lease is due, or 0 for no deadline."""
        ...


Build: TypeAlias = Callable[[TrainerSettings, SharedVectors], Trainer]


def main(build: Build) -> None:
    """Run until told to stop or until the agent is gone. The descriptors are those the agent passed down."""
    parser = argparse.ArgumentParser(description="A trainer process. Started by the agent, not by hand.")
    for name in ("socket", "shared", "stacks", "files"):
        parser.add_argument(f"--{name}-fd", type=int, required=True)
    parser.add_argument(
        "--confined", type=json.loads, default=[], help="the limits in force, from shoal.trainer.launch"
    )
    given = parser.parse_args()
    for fd in (given.socket_fd, given.shared_fd, given.stacks_fd, given.files_fd):
        os.set_inheritable(fd, False)
    sys.argv = ["shoal-trainer"]
    os.environ[TRAINER_VARIABLE] = "1"
    print_to_stderr()
    _die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=given.stacks_fd, all_threads=True)
    channel = Channel(socket.socket(fileno=given.socket_fd))
    channel.send({"kind": "ready", "confined": given.confined})
    _Service(channel, given.shared_fd, socket.socket(fileno=given.files_fd), build).run()


def print_to_stderr() -> None:
    """Send what user code prints to the log, whether Python or C writes it."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def place_of(error: BaseException, bundle_dir: str) -> str:
    """Return where in the task's code an error arose. If no frame is the task's, return the innermost frame, or ""
    for one of Shoal's own errors."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short(error.filename, bundle_dir)}:{error.lineno}"
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(code, line) for code, line in frames if _is_inside(code.co_filename, bundle_dir)]
    # Shoal's own errors say what is wrong with a task; the line of Shoal that raised them does not help its author.
    if not frames or (isinstance(error, ShoalError) and not own):
        return ""
    code, line = (own or frames)[-1]
    return f"{code.co_qualname} ({_short(code.co_filename, bundle_dir)}:{line})"


def told(error: BaseException, bundle_dir: str) -> str:
    """Return an error's traceback, or the end of a long one, with the task's files named relative to its directory."""
    try:
        text = "".join(traceback.format_exception(error))
        text = text.replace(f"{bundle_dir}/", "") if bundle_dir else text
    except Exception:
        # The error's own text fails, or there is no memory left for it: the reason has to do.
        return ""
    return text if len(text) <= TRACEBACK_MAX_CHARS else "…" + text[1 - TRACEBACK_MAX_CHARS :]


def reason_of(error: BaseException) -> str:
    """Return an error as text: Shoal's own as they are, others with their type first."""
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError):
        text += " (install it on this device, or put it beside the task in the task's directory)"
    return text if len(text) <= REASON_MAX_CHARS else text[: REASON_MAX_CHARS - 1] + "…"


class _Service:
    def __init__(self, channel: Channel, shared_fd: int, files: socket.socket, build: Build) -> None:
        self._channel = channel
        self._files = files
        self._shared_fd = shared_fd
        self._build = build
        self._trainer: Trainer | None = None
        #: The trainer again, for each further protocol that it implements. Checked once, because the check takes longer
        #: than answering a command.
        self._learner: Learner | None = None
        self._reader: ShardReader | None = None
        self._timed: Timed | None = None
        self._consulted: Consulted | None = None
        self._bundle_dir = ""
        self._reserve = Reserve()

    def run(self) -> None:
        # In a separate thread, so that the process ends with its agent while it trains a batch.
        threading.Thread(target=end_with_peer, args=(self._channel.fileno(),), name="agent", daemon=True).start()
        with contextlib.suppress(PeerViolation):
            while (command := self._channel.receive()) is not None:
                if command["kind"] == "stop":
                    return
                self._channel.send(self._answer(command) | {"seq": command.get("seq", 0)})
                self._reserve.shut()
        os._exit(0)

    def _answer(self, command: Message) -> Message:
        try:
            return self._do(command)
        # SystemExit and the like too: user code can end its batch but not the process.
        except BaseException as error:
            # First of all: without the reserve there may not be enough memory to report the error.
            self._reserve.open()
            traceback.print_exc()
            reason = _reason(error, self._reserve.task_bytes)
            where = place_of(error, self._bundle_dir)
            return {"kind": "failed", "reason": reason, "where": where, "traceback": told(error, self._bundle_dir)}

    def _do(self, command: Message) -> Message:
        learner, reader, consulted = self._learner, self._reader, self._consulted
        if self._timed is not None:
            self._timed.due_in(float(command.get("deadline_s", 0.0)))
        match command:
            case {"kind": "load"}:
                return answer("loaded", self._load(TrainerSettings.from_message(command)))
            case {"kind": "count"} if self._trainer:
                return answer("loaded", self._trainer.loaded())
            case {"kind": "train", "epoch": int(epoch), "batches": list(batches)} if self._trainer:
                return answer("trained", self._trainer.train(epoch, batches, **_lease_of(command)))
            case {"kind": "learn", "epoch": int(epoch), "lease": int(lease), "examples": int(examples)} if learner:
                return answer("trained", learner.learn(epoch, lease, examples, **_lease_of(command)))
            case {"kind": "evaluate", "start": int(start), "stop": int(stop)} if self._trainer:
                return answer("evaluated", self._trainer.evaluate(start, stop))
            case {"kind": "open", "shard": int(shard)} if reader:
                reader.open_shard(shard, receive_file(self._files, shard))
                return {"kind": "opened"}
            case {"kind": "consult", "number": int(number)} if consulted:
                with receive_file(self._files, number) as memory:
                    return consulted.consult(command, memory)
            case {"kind": "shut", "shard": int(shard)} if reader:
                reader.shut_shard(shard)
                return {"kind": "shut"}
        raise Misuse(f"the trainer cannot {command['kind']} now" if self._trainer else "nothing is loaded yet")

    def _load(self, settings: TrainerSettings) -> TaskLoaded:
        self._bundle_dir = settings.bundle_dir
        # Before the engine is imported: the threads that it starts inherit this thread's cores.
        keep_to(settings.cores)
        shared = SharedVectors.attach(self._shared_fd, settings.layout.size, settings.own_size)
        self._trainer = trainer = self._build(settings, shared)
        made: object = trainer
        self._learner = made if isinstance(made, Learner) else None
        self._reader = made if isinstance(made, ShardReader) else None
        self._timed = made if isinstance(made, Timed) else None
        self._consulted = made if isinstance(made, Consulted) else None
        return trainer.loaded()


class _LeaseNumbers(TypedDict):
    rate: float
    version: int


def _lease_of(command: Message) -> _LeaseNumbers:
    """Return the numbers of a lease: its epoch, learning rate and version."""
    match command:
        case {"rate": float(rate), "version": int(version)} if 0 <= rate < math.inf:
            return {"rate": rate, "version": version}
    raise Misuse(f"the agent asked to {command['kind']} without a learning rate and a version")


def _reason(error: BaseException, limit_bytes: int) -> str:
    """Return ``reason_of(error)``, or a plainer reason if the task reached its memory limit."""
    text = reason_of(error)
    if limit_bytes and says_no_memory(text):
        return f"{too_much_memory(limit_bytes)} ({text})"[:REASON_MAX_CHARS]
    return text


def _is_inside(filename: str, bundle_dir: str) -> bool:
    return bool(bundle_dir) and Path(filename).is_relative_to(bundle_dir)


def _short(filename: str, bundle_dir: str) -> str:
    if _is_inside(filename, bundle_dir):
        return str(Path(filename).relative_to(bundle_dir))
    return "/".join(Path(filename).parts[-3:])


def end_with_peer(fd: int) -> None:
    """End this process when the other end of a socket closes. Data that arrives does not wake this thread."""
    hang_up = select.poll()
    hang_up.register(fd, getattr(select, "POLLRDHUP", 0))
    while not hang_up.poll():
        pass
    os._exit(0)


def _die_with_parent() -> None:
    """Have Linux kill this process with the agent, even while C code holds the interpreter. Other systems rely on
    ``end_with_peer``."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
