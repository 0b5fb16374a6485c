"""The agent's end of the line to a trainer, with a socket in place of the process."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from shoal.trainer.channel import Channel, encode
from shoal.trainer.line import TrainerLine
from shoal.wire.limits import TRAINER_MESSAGE_MAX_BYTES

PATIENCE_S = 120.0


def play(story: Callable[[TrainerLine, socket.socket], Awaitable[None]]) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, line = await asyncio.get_running_loop().create_unix_connection(TrainerLine, sock=ours)
            try:
                await story(line, theirs)
            finally:
                line.close()
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S))


def due_s(after_s: float = PATIENCE_S) -> float:
    return asyncio.get_running_loop().time() + after_s


def test_answers_come_in_order_however_they_are_cut() -> None:
    said = [{"kind": "trained", "seq": number, "words": "x" * (500 * number)} for number in range(6)]

    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        whole = b"".join(map(encode, said))
        for at in range(0, len(whole), 700):
            theirs.sendall(whole[at : at + 700])
            await asyncio.sleep(0)
        assert [await line.get(due_s()) for _ in said] == said

    play(story)


def test_a_command_is_what_the_process_reads() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        line.send({"kind": "train", "seq": 1})
        line.send({"kind": "stop"})
        reading = Channel(theirs)
        assert [reading.receive(), reading.receive()] == [{"kind": "train", "seq": 1}, {"kind": "stop"}]

    play(story)


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        with pytest.raises(TimeoutError):
            await line.get(due_s(0.05))
        theirs.sendall(encode({"kind": "late"}))
        assert await line.get(due_s()) == {"kind": "late"}

    play(story)


def test_a_process_that_keeps_talking_is_not_waited_for_any_longer() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        over_s = due_s(0.2)

        async def listen() -> None:
            while True:
                theirs.sendall(encode({"kind": "stale"}))
                assert await line.get(over_s) == {"kind": "stale"}

        with pytest.raises(TimeoutError):
            await listen()

    play(story)


def test_what_was_said_before_the_end_is_heard() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        theirs.sendall(encode({"kind": "last"}) + b"\0\0")
        theirs.shutdown(socket.SHUT_WR)
        assert await line.get(due_s()) == {"kind": "last"}
        assert await line.get(due_s()) is None
        assert await line.get(due_s()) is None

    play(story)


@pytest.mark.parametrize("noise", [b"\xff\xff\xff\xff{}", b"\0\0\0\2[]", b"\0\0\0\2{}"])
def test_after_noise_there_are_no_answers(noise: bytes) -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        theirs.sendall(encode({"kind": "good"}) + noise + encode({"kind": "never read"}))
        assert await line.get(due_s()) == {"kind": "good"}
        assert await line.get(due_s()) is None
        assert await line.get(due_s()) is None

    play(story)


def test_a_waiting_caller_hears_that_the_line_was_closed() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        waiting = asyncio.create_task(line.get(due_s()))
        await asyncio.sleep(0)
        line.close()
        assert await waiting is None

    play(story)


def test_a_flood_fills_a_bounded_buffer_and_then_its_own_socket() -> None:
    async def story(line: TrainerLine, theirs: socket.socket) -> None:
        theirs.setblocking(False)
        answer = encode({"kind": "flood", "words": "x" * 60_000})
        loop, sent = asyncio.get_running_loop(), 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await loop.sock_sendall(theirs, answer)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        # One message that is as long as it may be, a read more, and what the kernel holds.
        assert len(line._incoming) <= TRAINER_MESSAGE_MAX_BYTES + (1 << 19)
        assert (await line.get(due_s()) or {})["kind"] == "flood"
        while sent == before:
            assert await line.get(due_s()) is not None
            await asyncio.sleep(0.01)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)

    play(story)
