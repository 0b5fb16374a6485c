"""Who may take part in a private job, and what its devices have spent."""

from __future__ import annotations

from shoal.plan import Plan
from shoal.roles.leader.participants import Participants
from shoal.roles.leader.workers import WorkerRecord
from shoal.until import epochs
from shoal.wire.messages import DeviceState


def test_the_job_has_spent_no_less_than_a_device_has_counted() -> None:
    plan = Plan(trust="private(8, 1e-5)", data="local", cohort=2, clip_update=2.0, until=epochs(3))
    privacy = plan.privacy
    assert privacy is not None
    # A device counts an update before it leaves: the third one is in no version yet.
    device = DeviceState(participations=3, spent=privacy.spent([3]))
    figures = Participants(privacy, term=1).figures([WorkerRecord(node="a", device=device)], versions=2)
    assert figures["participations_worst"] == 3
    assert figures["epsilon"] == figures["epsilon_worst"] > 0


def test_what_a_device_counted_stays_when_it_leaves_with_its_update() -> None:
    plan = Plan(trust="private(8, 1e-5)", data="local", cohort=2, clip_update=2.0, until=epochs(3))
    privacy = plan.privacy
    assert privacy is not None
    participants = Participants(privacy, term=1)
    participants.note_account(DeviceState(participations=3, spent=privacy.spent([3])))
    figures = participants.figures([], versions=2)
    assert figures["participations_worst"] == 3
    assert figures["epsilon"] == figures["epsilon_worst"] > 0


def test_no_figure_is_beyond_what_the_plan_promises() -> None:
    plan = Plan(trust="private(8, 1e-5)", data="local", cohort=2, clip_update=2.0, until=epochs(3))
    privacy = plan.privacy
    assert privacy is not None
    # Accounts are compared with room for rounding.
    device = DeviceState(participations=privacy.participations, spent=privacy.ratio * 1.0005)
    figures = Participants(privacy, term=1).figures([WorkerRecord(node="a", device=device)], versions=1)
    assert figures["epsilon"] == figures["epsilon_worst"] == privacy.epsilon_of(privacy.ratio)
