"""An agent or a manager as it is, that ends as by ``kill -9`` at a word of a sum: run as
``python -m mortal agent|manager ORDERS --home DIR ...``.

The file ORDERS says at which word, and at which time it is said from then on: ``Agreed 1`` ends the first device that
is about to say that it agreed, ``Open 3`` the leader that has asked two devices to open. The process that dies takes
the order away, so that it is carried out once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from shoal.roles.actions import Role
from shoal.runtime import agent, manager_main
from shoal.runtime.role_host import RoleHost
from shoal.wire.messages import (
    Agree,
    Agreed,
    AskMasks,
    Bind,
    MaskSum,
    Message,
    Open,
    Opened,
    Reduce,
    ReduceResult,
    ShardAck,
    Update,
    UpdateShard,
)

WORDS = (Bind, Update, Agree, Agreed, Open, Opened, UpdateShard, ShardAck, Reduce, ReduceResult, AskMasks, MaskSum)


class Orders:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._said = 0

    def heed(self, message: Message) -> None:
        """Called before each message is sent."""
        if not isinstance(message, WORDS):
            return
        try:
            word, time = self._path.read_text().split()
        except FileNotFoundError:
            self._said = 0
            return
        if word != type(message).__name__:
            return
        self._said += 1
        if self._said >= int(time):
            try:
                self._path.unlink()
            except FileNotFoundError:
                # Another process was first.
                return
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    what, orders = sys.argv.pop(1), Orders(Path(sys.argv.pop(1)))
    start = RoleHost.start

    def watched(self: Any, role: Role) -> None:
        send = self._send

        def send_or_die(to: str, message: Message) -> None:
            orders.heed(message)
            send(to, message)

        self._send = send_or_die
        start(self, role)

    RoleHost.start = watched  # type: ignore[method-assign]
    return agent.main() if what == "agent" else manager_main.main()


if __name__ == "__main__":
    sys.exit(main())
