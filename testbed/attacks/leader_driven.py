"""Attacks of a leader that lies, on what a device's driver does: keys of members, the first model, a trainer's memory.

The roles are those of ``leader``; keys are made and checked, and updates sealed, by the runtime's own driver.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from shoal.identity.cards import CardKey, make_card
from shoal.identity.identity import Authority, Identity
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, CheckRoster, MakeSealKey, Seal, Train
from shoal.roles.events import Event, RosterChecked, Trained
from shoal.runtime.role_host import RoleHost
from shoal.runtime.seal_keys import SealKeys, SignedMembers
from shoal.runtime.worker_driver import WorkerDriver
from shoal.trainer.host import TrainerHost
from shoal.trainer.protocol import TrainResult
from shoal.wire.messages import Dataset, JobSpec, Message
from testbed.attacks.kit import NotTried, Outcome
from testbed.attacks.leader import MODEL, judged, update_of
from testbed.attacks.lied_to import SIZE, SealGroup, Stage, StagedDevice, error_of, live_model
from testbed.attacks.lied_to_sets import Joined

DAY_S = 86400.0
DEVICES = 8
VICTIM = "d00"

#: The cards of members: who signed them (the operator, another, nobody), and how many days they are good for.
Card = tuple[str, float]


class _Around:
    async def fetch(self, sha256: str) -> Path:
        raise NotTried("a driver fetches something")

    def ended(self, job: str, reason: str) -> None:
        raise NotTried(f"a driver ended: {reason}")


class DrivenStage(Stage):
    """Each device has a driver of the runtime for its keys. All but one are the leader's own, and object to nothing."""

    def __init__(self, folder: Path, *, ago_days: float = 0.0, card: Card | None = None) -> None:
        self._folder = folder
        self._now_s = time.time()
        self._authority = Authority.create(folder / "authority", "pond", now_s=self._now_s - 1000 * DAY_S)
        self._ago_days, self._card = ago_days, card
        self._operator, self._other = CardKey.new(), CardKey.new()
        self._drivers: dict[str, WorkerDriver] = {}
        super().__init__("sealed(8, 10%, 30%)", DEVICES)

    def _act(self, name: str, device: StagedDevice, action: Action) -> None:
        match action:
            case CheckRoster() if name != VICTIM:
                self._handle(name, RosterChecked(roster=action.roster.roster, term=action.roster.term, bad={}))
            case MakeSealKey() | CheckRoster() | Seal():
                self._handle(name, self._driver(name)._sealed(action))
            case _:
                super()._act(name, device, action)

    def _driver(self, name: str) -> WorkerDriver:
        if name not in self._drivers:
            ago_s = 0.0 if name == VICTIM else self._ago_days * DAY_S
            member = self._authority.identity(node=name, role="node", now_s=self._now_s - ago_s)
            driver = WorkerDriver(self.spec, _Around(), member=member, cache=self._folder / name, child_module="none")
            driver._first_digest = hashlib.sha256(live_model().data).digest()
            if self._card is not None:
                driver._seal_keys = self._signed(member)
            self._drivers[name] = driver
        return self._drivers[name]

    def _signed(self, member: Identity) -> SealKeys:
        """The keys of a device whose job has signed members."""
        assert self._card is not None
        signer, days = ("operator", 90.0) if member.node == VICTIM else self._card
        own, card = CardKey.new(), b""
        if signer != "nobody":
            key = self._operator if signer == "operator" else self._other
            until_s = int(self._now_s + days * DAY_S)
            card = make_card(key, cluster="pond", node=member.node, key=own.public, until_s=until_s)
        signed = SignedMembers(card=card, card_key=own, pinned=self._operator.public)
        return SealKeys(member, self.spec.job, signed=signed)


def _surrounded(stage: DrivenStage) -> float:
    """The error of the victim's update, with all other members colluding."""
    stage.lend(stage.names)
    group: SealGroup = stage.bind(stage.names)
    places = {member.node: place for place, member in enumerate(group.members)}
    if places[VICTIM] not in group.uploads:
        return float("inf")
    others = [place for name, place in places.items() if name != VICTIM]
    joined = Joined(group, group.label(MODEL), others)
    return error_of(joined.lone([places[VICTIM]]), update_of(stage, VICTIM))


def _members(card: Card | None, *, ago_days: float = 0.0) -> Outcome:
    """Surround a device with members that it must not take. First with some that it takes: then its update is read,
    since more collude than its plan says, and the attack can show harm."""
    with tempfile.TemporaryDirectory() as name:
        control = DrivenStage(Path(name) / "control", card=None if card is None else ("operator", 90.0))
        if (found := _surrounded(control)) > 0.05:
            raise NotTried(f"among good members that collude the update is not read either: {found:.2g} off")
        stage = DrivenStage(Path(name) / "attack", ago_days=ago_days, card=card)
        error = _surrounded(stage)
        reasons = {line.partition(": ")[2] for line in stage.records if line.startswith(VICTIM)}
    return judged({"star": error}, f"the victim says {'; '.join(sorted(reasons))[:300] or 'nothing'}; its update is")


def expired_members() -> Outcome:
    """A leader surrounds a device with seven members whose certificates ran out long ago, and that collude.

    Harm: the device seals among them, and its update is read.
    """
    return _members(None, ago_days=800.0)


def revoked_members() -> Outcome:
    """The same where members are signed, with devices whose cards have ended: that is how they are shut out.

    Harm: as above.
    """
    return _members(("operator", -8.0))


def unapproved_members() -> Outcome:
    """The same where members are signed, with devices that have no card.

    Harm: as above.
    """
    return _members(("nobody", 0.0))


def minted_members() -> Outcome:
    """The same where members are signed, with cards by an operator's key that the manager made itself.

    Harm: as above.
    """
    return _members(("other", 90.0))


# Models ----------------------------------------------------------------------------------------------------------


def other_first_model() -> Outcome:
    """A leader gives all devices a version 0 of its own making, where the operator signed another.

    Harm: they seal what they trained on it. From the first version on, a leader could craft the model.
    """
    crafted = live_model(seed=8)
    with tempfile.TemporaryDirectory() as name:
        uploads = {}
        for what, model in (("signed", MODEL), ("crafted", crafted)):
            stage = DrivenStage(Path(name) / what)
            stage.lend(stage.names, model, version=0)
            uploads[what] = len(stage.bind(stage.names).uploads)
    if uploads["signed"] < DEVICES:
        raise NotTried(f"of the signed model {uploads['signed']} of {DEVICES} devices sealed an update")
    return Outcome(not uploads["crafted"], f"{uploads['crafted']} of {DEVICES} devices sealed an update of it")


class _Listening:
    def __init__(self) -> None:
        self.trained: asyncio.Future[Trained] = asyncio.get_running_loop().create_future()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, Trained):
            self.trained.set_result(event)
        return []


def _send_nothing(to: str, message: Message) -> None:
    raise NotTried("something was sent")


async def second_model(folder: Path, scale: float) -> Outcome:
    """While a device trains, a model under an older term comes, which is received where its trainer reads the model.

    Harm: the update is the difference to that one, as large as a word can say, and a leader takes it off a sum.
    """
    data = Dataset(manifest="0" * 64, examples=1)
    plan = Plan(trust="sealed(4, 0%, 0%)", data="local", workers_min=4, epoch_leases=8, until=Until(epochs=1))
    spec = JobSpec(job="j", name="j", entry="t:T", bundle="0" * 64, initial="0" * 64, train=data, test=data, plan=plan)
    member = Authority.create(folder / "authority", "pond").identity(node="pi", role="node")
    driver = WorkerDriver(spec, _Around(), member=member, cache=folder, child_module="none")
    trainer = driver._trainer
    trainer._renew_shared(SIZE)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def learn(*_: Any, **__: Any) -> TrainResult:
        # As the trainer's process does it.
        after = trainer.shared.model + np.float32(0.25)
        begun.set()
        await may_end.wait()
        np.subtract(after, trainer.shared.model, out=trainer.shared.update)
        return TrainResult(examples=64, loss_sum=1.0, seconds=1.0, finite=True, held=64)

    host, role = RoleHost("worker", driver.perform, send=_send_nothing), _Listening()
    host.start(role)
    train = Train(lease=1, epoch=0, batches=(0,), version=1, examples=64, tensors={"model": MODEL})
    with (
        mock.patch.object(trainer, "learn", learn),
        mock.patch.object(TrainerHost, "alive", mock.PropertyMock(return_value=True)),
    ):
        try:
            await driver.perform(host, train)
            await begun.wait()
            memory = driver.model_buffer(MODEL.nbytes)
            if memory is not None:
                np.frombuffer(memory, dtype=np.float32)[:] = -(2.0**38)
            may_end.set()
            delta = np.array((await role.trained).tensors["delta"])
        finally:
            await host.stop()
            await driver.stop()
    where = "memory of its own" if memory is None else "the driver's memory"
    right = bool(np.allclose(delta, 0.25, atol=1e-6))
    return Outcome(right, f"the second model went to {where}, and the update is {'as trained' if right else 'another'}")


DRIVEN = (expired_members, revoked_members, unapproved_members, minted_members, other_first_model)
