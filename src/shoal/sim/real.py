"""Makes a simulated job from a task, with real training if wanted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.errors import Misuse
from shoal.learning.algorithm import Algorithm
from shoal.plan import Plan, Until
from shoal.sim.algorithms import algorithm_of, with_algorithm
from shoal.sim.jobs import SimulatedJob, SystemOnly, Training
from shoal.sim.local_devices import DividedSet, LocalTraining, without_examples
from shoal.sim.torch_training import TorchTraining
from shoal.trainer.package import ReadyTask, spec_of
from shoal.trainer.prepared_job import first_model, own_layout

NOTHING_TO_DIVIDE = (
    "a partition divides examples to train on, and with --system-only nothing is trained: leave out one of them"
)


def _ends_by_learning(until: Until) -> str:
    """Return the first of a job's ends that only training can reach."""
    if until.accuracy is not None:
        return f"an accuracy of {until.accuracy:.0%}"
    return str(until.goals[0]) if until.goals else ""


def simulated_job(
    ready: ReadyTask,
    plan: Plan,
    *,
    train: bool,
    job: str = "job",
    torch_threads: int = 1,
    divided: DividedSet | None = None,
    algorithm: Algorithm | None = None,
) -> SimulatedJob:
    """Return the job as a cluster would get it. ``close`` it at the end: real training holds memory and files.

    ``divided``: the examples of each device, if they are the devices' own. ``algorithm``: what its leaders ask.
    """
    if (why := why_not(ready, plan, train=train, divided=divided)) is not None:
        raise Misuse(why)
    if plan.algorithm and algorithm is None:
        algorithm = algorithm_of(ready.bundle, plan.algorithm)
        plan = with_algorithm(replace(plan, algorithm=""), algorithm)
    whole = ready
    if plan.data == "local":
        ready = without_examples(ready)
    prepared = ready.prepared
    spec = spec_of(ready, plan, job=job)
    _, model = first_model(Path(prepared.model))
    model.flags.writeable = False
    fetch_bytes = _fetch_bytes(ready)
    training: Training = SystemOnly(prepared.layout.size, plan)
    local: LocalTraining | None = None
    if divided is not None:
        training = local = LocalTraining(whole, spec, divided, torch_threads=torch_threads)
    elif train:
        training = TorchTraining(ready, spec, torch_threads=torch_threads)
    return SimulatedJob(
        spec=spec,
        layout=prepared.layout,
        model=model,
        training=training,
        gmacs_per_example=prepared.gmacs_per_example,
        fetch_bytes=fetch_bytes,
        local=local,
        algorithm=algorithm,
    )


def why_not(ready: ReadyTask, plan: Plan, *, train: bool, divided: DividedSet | None = None) -> str | None:
    """Return why a job cannot be simulated like this, or None if it can."""
    ends, is_local, is_divided = _ends_by_learning(plan.until), plan.data == "local", divided is not None
    reasons = {
        f"{ends} is never reached where nothing is trained: end the job after a number of epochs or minutes instead, or"
        " train for real": bool(ends) and not train,
        'the plan has data = "local": say how the examples of this machine are divided among the devices, such as'
        ' --partition "dirichlet(0.1)", or train nothing, with --system-only': is_local and train and not is_divided,
        'a partition gives each device examples of its own, and the plan has data = "shared": add --plan data=local': (
            is_divided and not is_local
        ),
        NOTHING_TO_DIVIDE: is_divided and not train,
        'a part of this model is each device\'s own, which needs data = "local" in the plan': (
            not is_local and own_layout(Path(ready.prepared.model)) is not None
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def close(job: SimulatedJob) -> None:
    """Release what a job's training holds, whichever training that is."""
    if isinstance(job.training, TorchTraining):
        job.training.close()


def _fetch_bytes(ready: ReadyTask) -> int:
    """Return the bytes of the code, the first model and the examples."""
    prepared = ready.prepared
    shards = (*prepared.train.shards, *prepared.test.shards)
    return len(ready.bundle) + Path(prepared.model).stat().st_size + sum(shard.bytes for shard in shards)
