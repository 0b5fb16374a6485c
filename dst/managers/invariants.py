"""The invariants of a cluster with several managers: each writes only its own jobs, and only while it has a seat."""

from __future__ import annotations

from dst.managers.seen import SeenManagers
from dst.managers.shared_store import LABELS
from shoal.sim.invariants import ENDED, Invariants
from shoal.sim.observe import Mark
from shoal.sim.seen_job import SeenJob
from shoal.wire.messages import JobSpec


class ManagersInvariants(Invariants):
    _labels = LABELS

    def __init__(self, jobs: dict[str, tuple[JobSpec, int]], *, budget_bytes: int) -> None:
        super().__init__(jobs, budget_bytes=budget_bytes)
        self._managers = SeenManagers()
        #: Job -> when a manager last took it from another, or was given it.
        self._taken_over_s: dict[str, float] = {}
        #: Accepted jobs that a store that went back lacks.
        self._lost: set[str] = set()

    def _is_deposed(self, node: str) -> bool:
        return self._managers.is_deposed(node)

    def _has_job(self, node: str, job: str) -> bool:
        return self._managers.has_job(node, job)

    def _manager_began_s(self, job: str) -> float:
        return self._taken_over_s.get(job, 0.0)

    def _history_adopted(self, course: SeenJob) -> None:
        if self._managers.has_gone_back:
            # An earlier leader leads on under a term that jumped, and nobody waited for it.
            course.deposed = course.led_term

    def mark(self, mark: Mark) -> None:
        super().mark(mark)
        match mark.kind:
            case "seat":
                self._managers.seats[mark.node] = mark.facts["holder"]
            case "seat-ended":
                self._is_right(self._managers.on_seat_ended(mark), mark)
            case "went-back":
                self._went_back(mark)
            case "mended":
                self._mended(mark)
            case "taken":
                self._taken(mark)
            case "given":
                self._is_right(self._managers.on_given(mark), mark)
                self._taken_over_s[mark.facts["job"]] = mark.at_s
            case "drained" | "undrained":
                self._managers.on_drained(mark, is_drained=mark.kind == "drained")
            case "written":
                self._is_right(self._managers.on_written(mark), mark)
            case _:
                pass

    def _is_right(self, wrong: str, mark: Mark) -> None:
        self._hold(not wrong, wrong)

    def _went_back(self, mark: Mark) -> None:
        """Handle a store that went back: a leader may be replaced at once, as its term jumps. Events that no running
        process remembers may happen again."""
        self._managers.on_went_back(mark)
        self._lost = self._accepted & set(mark.facts["absent"])
        self._accepted -= self._lost
        for job, course in self._courses.items():
            course.deposed = course.led_term
            if job in mark.facts["forgotten"] and course.state in ENDED:
                course.state = "running"

    def _mended(self, mark: Mark) -> None:
        """Handle a job that a manager wrote again because the store forgot it, or whose term it has jump. An ended job
        may be open in the store for a moment, until the manager that remembers its end starts over."""
        job, state, term = mark.facts["job"], str(mark.facts["state"]), int(mark.facts["term"])
        course = self._courses[job]
        is_open_for_a_moment = course.state in ENDED and state not in ENDED
        self._kept(job, course.state if is_open_for_a_moment else state, term, mark.at_s)

    def _taken(self, mark: Mark) -> None:
        self._is_right(self._managers.on_taken(mark), mark)
        course = self._courses[mark.facts["job"]]
        self._taken_over_s[mark.facts["job"]] = mark.at_s
        if course.state in ENDED and self._managers.may_run_again(mark):
            course.state = "running"

    def _kept(self, job: str, state: str, term: int, at_s: float) -> None:
        if job in self._lost:
            self._lost.discard(job)
            self._accepted.add(job)
        super()._kept(job, state, term, at_s)
