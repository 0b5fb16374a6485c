"""A process that forks savers on request: numpy is imported once, so that a hundred can be killed in seconds.

Commands on stdin: ``loop DIRECTORY`` saves version after version; ``once DIRECTORY CALL WHEN`` saves one version and
kills itself right before or after its CALLth fsync, rename or unlink; ``reap`` waits for the saver. Answers on stdout.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

from shoal.store.checkpoints import CheckpointStore


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def save(store: CheckpointStore, version: int) -> None:
    tensors = {
        "model": np.full(1 << 15, version, np.float32),
        "velocity": np.arange(version, version + (1 << 15), dtype=np.int64),
    }
    store.save(version=version, tensors=tensors, state={"version": version, "ledger": [version] * 100})


def loop(directory: Path) -> None:
    store = CheckpointStore(directory)
    found = store.load()
    for version in itertools.count(found.version + 1 if found else 1):
        save(store, version)
        say(f"saved {version}")


def once(directory: Path, call: int, when: str) -> None:
    store = CheckpointStore(directory)
    save(store, 1)
    save(store, 2)
    calls = itertools.count(1)

    def dying(name: str) -> None:
        original = getattr(os, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            now = next(calls) == call
            if now and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, wrapped)

    for name in ("fsync", "replace", "unlink"):
        dying(name)
    save(store, 3)
    say("saved 3")


def main() -> None:
    saver = 0
    for line in sys.stdin:
        match line.split():
            case ["reap"]:
                os.waitpid(saver, 0)
                say("reaped")
            case [command, directory, *rest]:
                saver = os.fork()
                if saver:
                    say(f"started {saver}")
                    continue
                try:
                    if command == "loop":
                        loop(Path(directory))
                    else:
                        once(Path(directory), int(rest[0]), rest[1])
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)


if __name__ == "__main__":
    main()
