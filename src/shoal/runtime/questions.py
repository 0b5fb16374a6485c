"""Commands of operators that the manager role decides on: each waits here until the role answers it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from shoal.roles.actions import Answer
from shoal.roles.events import Asked
from shoal.wire.messages import Denied, Message

#: An operator's command is answered within this time or fails.
ANSWER_TIMEOUT_S = 20.0


class Questions:
    def __init__(self, post: Callable[[Asked], object]) -> None:
        """``post`` tells the manager role."""
        self._post = post
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def ask(self, message: Message, *, by: str) -> Message:
        """Have the manager role decide. Return its answer, or a denial if it does not answer in time."""
        number = next(self._numbers)
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._post(Asked(question=number, message=message, by=by))
        try:
            return await asyncio.wait_for(waiting, ANSWER_TIMEOUT_S)
        except TimeoutError:
            return Denied(reason="the manager did not answer in time; look at its log")
        finally:
            self._waiting.pop(number, None)

    def on_answer(self, answer: Answer) -> None:
        waiting = self._waiting.pop(answer.question, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.message)
