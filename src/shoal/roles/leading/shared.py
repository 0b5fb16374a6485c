"""The state that the parts of a leader share. Each part changes its own, and reads the rest."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.roles.course import Course
from shoal.roles.crew import Crew
from shoal.roles.durability import Durability
from shoal.roles.exam import Evaluations
from shoal.roles.online import Online
from shoal.roles.portions import Portions
from shoal.roles.shape import Shape
from shoal.roles.suspicion import Suspicion
from shoal.wire.messages import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    spec: JobSpec
    term: int
    course: Course
    crew: Crew
    shape: Shape
    evaluations: Evaluations
    durability: Durability
    suspicion: Suspicion
    portions: Portions
    #: Where examples are the devices' own.
    online: Online | None
