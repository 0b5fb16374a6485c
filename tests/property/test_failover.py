"""The manager under anything that leaders, workers, disks and operators say, in any order: what always holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.plan import Plan
from shoal.roles.actions import Action, Keep, Load, Send, Store
from shoal.roles.events import (
    Asked,
    Event,
    Liveness,
    LoadFailed,
    MemberHeld,
    PeerChanged,
    Received,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
)
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.states import JobState
from shoal.wire.messages import (
    AskCheckpoint,
    Assign,
    Checkpoint,
    CheckpointKept,
    Dataset,
    Facts,
    Heartbeat,
    Hello,
    JobSpec,
    LeaderUnreachable,
    Leads,
    Message,
    Progress,
    Released,
    SteppedDown,
    StopJob,
    Submit,
    TransferJob,
)

SHA = "0" * 64
NODES = st.sampled_from("abc")
SPEAKERS = st.sampled_from(["a", "b", "c", "home"])
JOBS = st.sampled_from(["old", "new"])
TERMS = st.integers(1, 9)


def spec(job: str) -> JobSpec:
    data = Dataset(manifest=SHA, examples=1)
    return JobSpec(job=job, name=job, entry="task:T", bundle=SHA, initial=SHA, train=data, test=data, plan=Plan())


def said(sender: str, message: Message) -> Event:
    # A leader at home is in place once it is told: it announces nothing.
    sender = "a" if sender == "home" and isinstance(message, Leads) else sender
    return Received(sender=sender, message=message)


def asked(message: Message) -> Event:
    return Asked(question=1, message=message)


LEADS = st.builds(Leads, job=JOBS, term=TERMS, endpoint=st.sampled_from(["x:1", "y:2", ""]))
HELLOS = st.builds(
    lambda node, incarnation, leads: said(
        node, Hello(node=node, incarnation=incarnation, facts=Facts(torch="2", cpus=1), leads=tuple(leads))
    ),
    NODES,
    st.sampled_from("12"),
    st.lists(LEADS, max_size=2),
)
SAID = st.one_of(
    LEADS,
    st.builds(Progress, job=JOBS, term=TERMS, state=st.sampled_from(["training", "training", "finished"])),
    st.builds(SteppedDown, job=JOBS, term=TERMS, reason=st.just(""), failed=st.booleans()),
    st.builds(Checkpoint, job=JOBS, term=TERMS, version=st.integers(0, 3)),
    st.builds(AskCheckpoint, job=JOBS, term=TERMS),
    st.builds(Released, job=JOBS, term=TERMS, node=NODES),
    st.builds(LeaderUnreachable, job=JOBS, term=TERMS, reason=st.just("")),
    st.builds(Heartbeat, seq=st.just(1), load=st.floats(0, 2), link_bytes_per_s=st.sampled_from([0.0, 1e6, 1e9])),
)
COMMANDS = st.one_of(
    st.just(Submit(spec=spec("new"))),
    st.builds(StopJob, job=JOBS),
    st.builds(TransferJob, job=JOBS, node=st.sampled_from(["", "a", "b", "home", "z"])),
)
TIMERS = st.sampled_from(["look", "missed", "appointed old", "parting old", "appointed new", "parting new", "none"])
EVENTS = st.lists(
    st.one_of(
        HELLOS,
        st.builds(said, SPEAKERS, SAID),
        st.builds(said, SPEAKERS, SAID),
        st.builds(asked, COMMANDS),
        st.builds(PeerChanged, node=NODES, state=st.sampled_from(Liveness), reason=st.just("")),
        st.builds(MemberHeld, node=NODES, hold=st.sampled_from(["", "drained"])),
        st.builds(TimerFired, name=TIMERS),
        st.builds(LoadFailed, job=JOBS, term=TERMS, reason=st.just("")),
        st.just("disk"),
    ),
    min_size=10,
    max_size=60,
)


class Watch:
    """Looks at what the manager does, from outside."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        #: Job -> the newest term that is written down, and whose it is.
        self.durable: dict[str, tuple[int, str]] = {"old": (3, "a")}
        #: (job, term) -> who was told to lead under it.
        self.told: dict[tuple[str, int], str] = {}
        self.storing: dict[str, Checkpoint] = {}
        self.over: set[str] = set()

    def happens(self, event: Event, now_s: float) -> None:
        for action in self.manager.handle(event, now_s):
            self.looks(action, event)
        for view in self.manager.job_views():
            assert (view.term, view.leader) == self.durable[view.job] or not view.leader

    def looks(self, action: Action, event: Event) -> None:
        match action:
            case Keep():
                term, leader = self.durable.get(action.job, (0, ""))
                assert action.term >= term, "terms never go back"
                assert action.job not in self.over, "an end is an end"
                if action.term > term:
                    assert action.job not in self.storing, "the last leader's version is still being written"
                    leader = action.leader
                self.durable[action.job] = (action.term, leader)
                if action.state in ("finished", "failed", "stopped"):
                    self.over.add(action.job)
            case Store(checkpoint=checkpoint):
                assert isinstance(event, Received)
                assert self.durable[checkpoint.job] == (checkpoint.term, event.sender), "only the newest leader's"
                assert checkpoint.job not in self.storing, "one at a time"
                self.storing[checkpoint.job] = checkpoint
            case Load():
                assert self.durable[action.job] == (action.term, action.to)
                assert action.job not in self.storing or self.storing[action.job].term == action.term
            case Send():
                self.hears(action.to, action.message, event)
            case _:
                pass

    def hears(self, to: str, message: Message, event: Event) -> None:
        assert to, "said to nobody"
        match message:
            case Assign():
                assert (message.term, message.leader) == self.durable[message.job], "written down before it is said"
                assert message.job not in self.over
                if message.role == "leader":
                    assert to == message.leader
                    assert self.told.setdefault((message.job, message.term), to) == to, "one leader a term"
                else:
                    assert bool(message.leader_endpoint) == (message.leader != "home"), "it can be dialled"
            case CheckpointKept():
                assert isinstance(event, Stored), "durable before it is said"
                assert (to, message.version) == (self.durable[message.job][1], event.version)
            case _:
                pass


@settings(max_examples=400, deadline=None)
@given(EVENTS, st.booleans(), st.data())
def test_whatever_happens_there_is_one_leader_a_term_and_nothing_it_must_not_lose_is_lost(
    events: list[Event | str], prefers_devices: bool, data: st.DataObject
) -> None:
    old = JobRecord(spec=spec("old"), state=JobState.RUNNING, term=3, leader="a")
    manager = Manager(node="home", patience=Patience(), jobs=[old], prefers_devices=prefers_devices)
    watch = Watch(manager)
    watch.happens(Started(), 0.0)
    for at, event in enumerate(events):
        now_s = 200.0 * at
        if event != "disk":
            assert not isinstance(event, str)
            watch.happens(event, now_s)
        elif watch.storing:
            written = watch.storing.pop(sorted(watch.storing)[0])
            what = {"job": written.job, "term": written.term, "version": written.version}
            done = Stored(**what) if data.draw(st.booleans()) else StoreFailed(**what, reason="")
            watch.happens(done, now_s)
    # Once disks are done and time-outs have passed, every open job has a leader, or one is being set up.
    for written in watch.storing.copy().values():
        del watch.storing[written.job]
        watch.happens(Stored(job=written.job, term=written.term, version=written.version), 1e6)
    watch.happens(TimerFired(name="missed"), 1e6)
    assert all(view.leader for view in manager.job_views() if view.job not in watch.over)
