"""Each question to the manager role gets its own answer, or a denial when none comes in time."""

from __future__ import annotations

import asyncio

import pytest

from shoal.roles.actions import Answer
from shoal.roles.events import Asked
from shoal.runtime import questions
from shoal.runtime.questions import Questions
from shoal.wire.messages import Denied, Done, StopJob

pytestmark = pytest.mark.timeout(60)


def test_answers_reach_those_who_asked_in_whatever_order_they_come() -> None:
    async def story() -> None:
        posted: list[Asked] = []
        desk = Questions(posted.append)
        first = asyncio.create_task(desk.ask(StopJob(job="a"), by="ann"))
        second = asyncio.create_task(desk.ask(StopJob(job="b"), by="ben"))
        await asyncio.sleep(0)
        assert [(asked.message, asked.by) for asked in posted] == [(StopJob(job="a"), "ann"), (StopJob(job="b"), "ben")]
        for asked, reason in zip(reversed(posted), ("b ends", "a ends"), strict=True):
            desk.on_answer(Answer(question=asked.question, message=Done(reason=reason)))
        assert (await first, await second) == (Done(reason="a ends"), Done(reason="b ends"))

    asyncio.run(story())


def test_a_role_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "ANSWER_TIMEOUT_S", 0.01)

    async def story() -> None:
        posted: list[Asked] = []
        desk = Questions(posted.append)
        answer = await desk.ask(StopJob(job="a"), by="ann")
        assert answer == Denied(reason="the manager did not answer in time; look at its log")
        # The answer comes after all, and twice: nobody waits for it.
        for _ in range(2):
            desk.on_answer(Answer(question=posted[0].question, message=Done(reason="late")))

    asyncio.run(story())
