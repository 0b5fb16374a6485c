"""The answers that a helper may give, and who may see which part of a sum that it opens. Shares no code with the roles.

A label is answered at most once, whatever died in between; never for fewer members than the plan says, and never for an
envelope that came with other words than those of this group. The helper gets no words and no work and does not lead;
the leader gets no seed. No device sends an update under two labels: nobody tells it which of two sums were opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from dst.privacy_oracle import smallest_sum
from shoal.roles.actions import Send
from shoal.roles.events import Received
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import AskMasks, Assign, Bind, JobSpec, MaskSum, Message, Update, Work

#: An envelope has a seed of 16 bytes and its tag.
ENVELOPE_BYTES = 32

_Group = tuple[str, int, int]


class HelperOracle:
    def __init__(self, specs: Sequence[JobSpec]) -> None:
        helped = {spec.job: spec.plan for spec in specs if spec.plan.believes.helper is not None}
        self._helpers = {job: plan.believes.helper for job, plan in helped.items()}
        self._least = {job: smallest_sum(plan) for job, plan in helped.items()}
        #: (job, term, group) -> the first question about it that the helper heard; and the groups that it answered for.
        self._asked: dict[_Group, AskMasks] = {}
        self._answered: set[_Group] = set()
        #: (job, term, group) -> the envelopes that came with words of it.
        self._envelopes: dict[_Group, set[bytes]] = {}
        #: (node, job, term, lease) -> the group under whose label it was sent.
        self._sent: dict[tuple[str, str, int, int], int] = {}
        #: What the helper alone may know.
        self._seeds: dict[_Group, list[bytes]] = {}
        #: Sums that a helper opened.
        self.answers = 0

    def mark(self, mark: Mark) -> None:
        if mark.kind == "seed":
            facts = mark.facts
            self._seeds.setdefault((facts["job"], facts["term"], facts["group"]), []).append(facts["seed"])

    def step(self, step: Step) -> None:
        if step.role == "manager":
            for action in step.actions:
                if isinstance(action, Send) and isinstance(action.message, Assign):
                    leads = action.message.role == "leader" and action.to == self._helpers.get(action.message.job)
                    self._hold(not leads, step, f"{action.to} is to lead the job whose sums it opens")
            return
        if step.job not in self._helpers:
            return
        helper = self._helpers[step.job]
        if step.role == "worker" and step.node == helper and isinstance(step.event, Received):
            self._heard(step, step.event.message)
        for action in step.actions:
            if isinstance(action, Send):
                self._said(step, action.to, action.message)

    def _heard(self, step: Step, message: Message) -> None:
        self._hold(not getattr(message, "tensors", None), step, f"{step.node} got words, and knows seeds")
        if isinstance(message, AskMasks):
            # The first: a helper works on no other question about a group.
            self._asked.setdefault((step.job, message.term, message.group), message)

    def _said(self, step: Step, to: str, message: Message) -> None:
        match message:
            case Work() | Bind():
                self._hold(to != self._helpers[step.job], step, f"{to} was lent work, and opens sums")
            case Update():
                self._sends(step, message)
            case MaskSum():
                self._answers(step, message)
            case _:
                pass

    def _sends(self, step: Step, update: Update) -> None:
        key, seals = (step.job, update.term, update.group), update.tensors["seals"].tobytes()
        seeds = self._seeds.get(key, ())
        told = [tensor.tobytes() for tensor in update.tensors.values()]
        self._hold(
            not any(seed in part for seed in seeds for part in told), step, f"{step.node} told the leader a seed"
        )
        # The words of figures follow it.
        self._envelopes.setdefault(key, set()).add(seals[:ENVELOPE_BYTES])
        lease = (step.node, step.job, update.term, update.lease)
        first = self._sent.setdefault(lease, update.group)
        self._hold(first == update.group, step, f"{step.node} sealed an update for groups {first} and {update.group}")

    def _answers(self, step: Step, answer: MaskSum) -> None:
        key = (step.job, answer.term, answer.group)
        self._hold(key not in self._answered, step, f"{step.node} answered twice for group {answer.group}")
        self._answered.add(key)
        self.answers += 1
        asked = self._asked[key]
        count = sum(byte.bit_count() for byte in asked.present)
        self._hold(count >= self._least[step.job], step, f"{step.node} opened a sum of {count}")
        cut = [asked.envelopes[at : at + ENVELOPE_BYTES] for at in range(0, len(asked.envelopes), ENVELOPE_BYTES)]
        self._hold(len(cut) == len(set(cut)) == count, step, f"{step.node} was asked about {len(cut)} of {count}")
        known = self._envelopes.get(key, set())
        self._hold(set(cut) <= known, step, f"{step.node} opened an envelope of another label than that of {key}")

    @staticmethod
    def _hold(holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
