"""What operators do, for the audit log: which commands change something, and how the log describes them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.identity.names import RemoteIdentity
from shoal.store.registry import Registry
from shoal.wire.limits import REASON_MAX_CHARS
from shoal.wire.messages import (
    ActList,
    ActView,
    ApproveNode,
    AskActs,
    CollectGarbage,
    Denied,
    DrainManager,
    DrainNode,
    ForgetNode,
    LabelNode,
    MakeToken,
    Message,
    PublishModel,
    RemoveJob,
    RevokeNode,
    RevokeToken,
    RollBackModel,
    SettleContributions,
    StopJob,
    Submit,
    TransferJob,
    UndrainManager,
    UndrainNode,
    clip,
)

#: Whose acts those of the manager itself are. It is the name of its node, which no operator gets.
BY_MANAGER = "manager"

#: Acts on one page of the log.
ACTS_SHOWN = 500
#: Most text of a page: one message holds it, whatever was refused and why.
TEXT_SHOWN_MAX_CHARS = 100 * REASON_MAX_CHARS


class Act(NamedTuple):
    #: What was asked for, such as ``stop a job``.
    kind: str
    #: The job, node or token that it is about, or empty for the cluster.
    subject: str
    text: str = ""
    #: The job that has the event, or empty for the cluster.
    job: str = ""

    @property
    def told(self) -> str:
        """The act in one line."""
        about = f" {self.subject}" if self.subject else ""
        return f"{self.kind}{about}" + (f": {self.text}" if self.text else "")


def act_of(command: Message) -> Act | None:
    """Describe a command of an operator. Returns None for a question, which changes nothing."""
    match command:
        case Submit(spec=spec):
            return Act("submit a job", spec.job, f"{spec.name}, code {spec.bundle[:12]}", spec.job)
        case StopJob(job=job, reason=reason):
            return Act("stop a job", job, reason, job)
        case TransferJob(job=job, node=node):
            return Act("transfer a job", job, f"to {node or 'the node that is placed best'}", job)
        case RemoveJob(job=job):
            return Act("remove a job", job)
        case PublishModel(job=job, reason=reason):
            return Act("publish a version", job, reason, job)
        case RollBackModel(job=job, version=version, reason=reason):
            which = f"to version {version}" if version else "to the one before"
            return Act("roll a model back", job, f"{which}{f': {reason}' if reason else ''}", job)
        case CollectGarbage(dry_run=False):
            return Act("collect garbage", "")
        case MakeToken(role=role, uses=uses, valid_s=valid_s, label=label):
            told = f"{uses} x {role} for {valid_s / 3600:g} h"
            return Act("make a join line", "", f"{told}{f', {label}' if label else ''}")
        case RevokeToken(token=token):
            return Act("revoke a join line", token)
        case RevokeNode(node=node, reason=reason):
            return Act("revoke a node", node, reason)
        case ApproveNode(node=node, card=card):
            return Act("approve a node", node, "with a card" if card else "")
        case DrainNode(node=node, reason=reason):
            return Act("drain a node", node, reason)
        case UndrainNode(node=node):
            return Act("undrain a node", node)
        case DrainManager(manager=manager, reason=reason):
            return Act("drain a manager", manager, reason)
        case UndrainManager(manager=manager):
            return Act("undrain a manager", manager)
        case LabelNode(node=node, labels=labels):
            return Act("label a node", node, ", ".join(labels))
        case ForgetNode(node=node):
            return Act("forget a node", node)
        case SettleContributions(set=name, sha256s=sha256s, approve=approve):
            files = ", ".join(sha256[:12] for sha256 in sha256s)
            return Act("approve entries" if approve else "reject entries", name, files)
        case _:
            return None


class AuditLog:
    """Writes the audit log: a row before a command is carried out, and one more if it is refused."""

    def __init__(self, registry: Registry, *, manager: str) -> None:
        self._registry = registry
        self._manager = manager

    async def carry_out(
        self,
        peer: RemoteIdentity,
        act: Act,
        do: Callable[[], Awaitable[Message]],
        *,
        run: Callable[..., Awaitable[object]],
    ) -> Message:
        """Carry out a command once the log has it. ``run`` runs what blocks in a thread.

        A command that cannot be logged is not carried out: it raises what the database says.
        """
        await run(self._add, peer, act, act.text, False)
        try:
            answer = await do()
        except ShoalError as error:
            await run(self._add, peer, act, str(error), True)
            raise
        if isinstance(answer, Denied):
            await run(self._add, peer, act, answer.reason, True)
        return answer

    def _add(self, peer: RemoteIdentity, act: Act, text: str, is_refused: bool) -> None:
        self._registry.add_act(
            at_s=time.time(),
            operator=peer.node,
            certificate=peer.certificate,
            manager=self._manager,
            kind=act.kind,
            subject=act.subject,
            text=clip(text),
            is_refused=is_refused,
        )

    def add_own(self, act: Act) -> None:
        """Append what the manager does by itself, as it was started to. Durable when this returns."""
        self._registry.add_act(
            at_s=time.time(),
            operator=BY_MANAGER,
            certificate="",
            manager=self._manager,
            kind=act.kind,
            subject=act.subject,
            text=clip(act.text),
        )

    def page(self, asked: AskActs) -> ActList:
        rows = self._registry.acts(after=asked.after, limit=ACTS_SHOWN + 1, subject=asked.subject)
        chars = itertools.accumulate(len(row.text) for row in rows)
        fits = sum(total <= TEXT_SHOWN_MAX_CHARS for total in chars)
        shown = rows[: min(fits, ACTS_SHOWN)]
        views = tuple(
            ActView(
                seq=row.seq,
                at_s=row.at_s,
                operator=row.operator,
                certificate=row.certificate,
                manager=row.manager,
                kind=row.kind,
                subject=row.subject,
                text=row.text,
                is_refused=bool(row.is_refused),
                sha256=row.sha256,
            )
            for row in shown
        )
        return ActList(acts=views, next_act=shown[-1].seq if len(rows) > len(shown) else 0)
