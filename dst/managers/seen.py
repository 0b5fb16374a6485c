"""An observer's view of managers that share a store: whose seat has ended, who has which job, which jobs they accepted.

Methods that check return what is wrong, or "".
"""

from __future__ import annotations

from shoal.roles.manager.seat_watch import home_of
from shoal.sim.observe import Mark


class SeenManagers:
    def __init__(self) -> None:
        #: The process with the last seat of each place, seats that have ended, and the manager of each job.
        self.seats: dict[str, str] = {}
        self._ended: set[str] = set()
        self._managers: dict[str, str] = {}
        #: The homes of drained managers.
        self._drained: set[str] = set()
        self.has_gone_back = False
        #: Jobs that had ended, and are open in such a store.
        self._reopened: set[str] = set()

    def is_deposed(self, node: str) -> bool:
        """Whether another manager has ended the seat of the one that runs here."""
        return self.seats.get(node, "") in self._ended

    def has_job(self, node: str, job: str) -> bool:
        """Whether the manager that runs here has this job."""
        return not self.seats or self._managers.get(job) == self.seats.get(node)

    def on_seat_ended(self, mark: Mark) -> str:
        ended = str(mark.facts["holder"])
        self._ended.add(ended)
        return f"{mark.node} ended the seat of {ended}, which was well" if mark.facts["was_well"] else ""

    def on_taken(self, mark: Mark) -> str:
        """Check that a job moves only from a manager that cannot write any more."""
        job, before = str(mark.facts["job"]), str(mark.facts["before"])
        self._managers[job] = holder = str(mark.facts["holder"])
        if home_of(holder) in self._drained:
            return f"{mark.node} took {job}, and is drained"
        is_free = not before or before in self._ended
        return "" if is_free else f"{mark.node} took {job} from {before}, which has a seat"

    def on_given(self, mark: Mark) -> str:
        """A job's manager gives it away while that manager has a seat, and only to one that is not drained."""
        job, before, holder = (str(mark.facts[name]) for name in ("job", "before", "holder"))
        owner, self._managers[job] = self._managers.get(job, before), holder
        if before != owner or before in self._ended:
            return f"{before} gave {job} away, which {owner} has"
        return f"{holder} was given {job}, and is drained" if home_of(holder) in self._drained else ""

    def on_drained(self, mark: Mark, *, is_drained: bool) -> None:
        home = {home_of(mark.facts["holder"])}
        self._drained = self._drained | home if is_drained else self._drained - home

    def may_run_again(self, mark: Mark) -> bool:
        """Whether an ended job is taken because the manager that remembers its end was silent for too long."""
        return mark.facts["job"] in self._reopened and home_of(mark.facts["before"]) != home_of(mark.facts["holder"])

    def on_written(self, mark: Mark) -> str:
        """Check that a manager writes only while it has a seat, and only its own jobs."""
        holder, job = str(mark.facts["holder"]), str(mark.facts["job"])
        if holder in self._ended:
            return f"{holder} wrote {job}, and its seat has ended"
        owner = self._managers.setdefault(job, holder)
        return "" if owner == holder else f"{holder} wrote {job}, which {owner} has"

    def on_went_back(self, mark: Mark) -> None:
        """Restore the earlier seats and the earlier manager of each job after the store went back. The manager that
        took a job queues it again once it starts over."""
        self.has_gone_back = True
        self._ended -= set(mark.facts["seats"])
        self._managers = dict(mark.facts["managers"])
        self._drained = set(mark.facts["drained"])
        self._reopened = set(mark.facts["reopened"])
