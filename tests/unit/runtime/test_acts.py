"""Which commands of operators the audit log has."""

from __future__ import annotations

import asyncio
import typing
from pathlib import Path

import pytest

from shoal.errors import Refused
from shoal.identity.names import RemoteIdentity
from shoal.runtime.acts import Act, AuditLog, act_of
from shoal.store.registry import Registry
from shoal.wire import messages
from shoal.wire.encoding import encode_envelope
from shoal.wire.limits import REPLY_MAX_BYTES
from shoal.wire.messages import (
    ApproveNode,
    AskActs,
    CollectGarbage,
    MakeToken,
    Message,
    RevokeNode,
    RollBackModel,
    SettleContributions,
    StopJob,
    clip,
)

#: Commands that only ask.
QUESTIONS = {
    "AskActs",
    "AskContributions",
    "AskManager",
    "AskModel",
    "AskSpec",
    "AskStatus",
    "AskTokens",
    "AskVersions",
}


def commands() -> list[type[Message]]:
    kinds = (each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, Message))
    return [
        kind for kind in kinds if "operator" in getattr(getattr(kind, "rule", None), "said_by", {}).get("Operate", ())
    ]


def test_every_command_is_an_act_or_a_question() -> None:
    """A command that is added later is in neither list, and this fails."""
    described = {each.__name__ for each in _patterns()}
    assert {kind.__name__ for kind in commands()} == described | QUESTIONS


def _patterns() -> typing.Iterable[type[Message]]:
    """The commands that ``act_of`` describes, found by giving it one of each."""
    for kind in commands():
        if kind.__name__ == "Submit":
            yield kind
            continue
        given = {name: "x" for name in ("job", "node", "token", "role") if name in kind.__dataclass_fields__}
        given |= {"labels": ("a=1",)} if "labels" in kind.__dataclass_fields__ else {}
        given |= {"set": "x", "sha256s": ("0" * 64,), "approve": True} if kind is SettleContributions else {}
        given |= {"uses": 1, "valid_s": 60.0} if kind is MakeToken else {}
        if act_of(kind(**given)) is not None:
            yield kind


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (StopJob(job="j", reason="too slow"), "stop a job j: too slow"),
        (RevokeNode(node="d6"), "revoke a node d6"),
        (
            SettleContributions(set="weeds", sha256s=("ab" * 32, "cd" * 32), approve=False),
            "reject entries weeds: abababababab, cdcdcdcdcdcd",
        ),
        (ApproveNode(node="d6", card=b"x"), "approve a node d6: with a card"),
        (RollBackModel(job="j", version=7, reason="worse"), "roll a model back j: to version 7: worse"),
        (MakeToken(role="node", uses=5, valid_s=7200.0, label="lab"), "make a join line: 5 x node for 2 h, lab"),
    ],
)
def test_an_act_is_told_in_one_line(command: Message, told: str) -> None:
    act = act_of(command)
    assert act is not None
    assert act.told == told


def test_looking_what_garbage_there_is_changes_nothing() -> None:
    assert act_of(CollectGarbage(dry_run=True)) is None


def test_a_refusal_of_full_length_is_read_page_by_page(tmp_path: Path) -> None:
    """Of 130 such texts a page holds a hundred. A text was as long as a name at most, and no page could be read."""
    log, reason = AuditLog(Registry(tmp_path / "registry.sqlite"), manager="manager"), "w" * 5000
    peer = RemoteIdentity(node="operator", role="operator", cluster="pond")

    async def refuse() -> Message:
        raise Refused(reason)

    async def story() -> None:
        for _ in range(130):
            with pytest.raises(Refused):
                await log.carry_out(peer, Act("drain a manager", ""), refuse, run=asyncio.to_thread)

    asyncio.run(story())
    first = log.page(AskActs())
    second = log.page(AskActs(after=first.next_act))
    assert second.next_act == 0
    texts = [act.text for act in (*first.acts, *second.acts) if act.is_refused]
    assert texts == [clip(reason)] * 130
    assert encode_envelope(first, max_bytes=REPLY_MAX_BYTES)
