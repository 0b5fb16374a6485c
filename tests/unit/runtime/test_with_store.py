"""What a manager decided waits for a store that is away, and is done once it is back."""

from __future__ import annotations

import asyncio

import pytest

from shoal.runtime import with_store
from shoal.store.base import Away
from shoal.store.seat import Deposed

pytestmark = pytest.mark.timeout(60)


def test_it_waits_for_the_store_and_gives_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_store, "STORE_AGAIN_S", 0.01)
    tried: list[str] = []

    def newest(job: str) -> int:
        tried.append(job)
        if len(tried) < 3:
            raise Away("the database is away")
        return 7

    assert asyncio.run(with_store.with_store(newest, "digits", on_deposed=print)) == 7
    assert tried == ["digits"] * 3


def test_a_deposed_manager_does_nothing_more() -> None:
    def write() -> None:
        raise Deposed("another manager has taken over")

    ended: list[Deposed] = []

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(with_store.with_store(write, on_deposed=ended.append), 0.2)

    asyncio.run(story())
    assert len(ended) == 1, "it is told to end: a seat that it still has would not tell it"
