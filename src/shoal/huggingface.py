"""``shoal.huggingface.patch``: lets a Hugging Face Trainer train leases. Needs transformers.

    trainer = shoal.huggingface.patch(Trainer(model=model, args=args, train_dataset=data), steps=50)
    trainer.train()

Under ``shoal run`` a device trains until the job ends, whatever the Trainer's own limits are. Started by hand, the
Trainer stays as it is. Only the adapters of a peft model are sent: the rest has ``requires_grad = False``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from transformers import TrainerCallback

from shoal.loop import Evaluate, Stepper, count_of, draw_apart, is_lent

#: A Trainer needs a number of steps.
_ENDLESS = 2**31 - 1

_T = TypeVar("_T")


def patch(trainer: _T, *, steps: int = 50, evaluate: Evaluate | None = None) -> _T:
    """Let a Trainer's loop train leases: after every ``steps`` steps it sends its update and takes the next version.

    ``evaluate`` is as for ``shoal.worker``; the Trainer's own evaluation and checkpoints are off on devices.
    """
    if not is_lent():
        return trainer
    given: Any = trainer
    given.args.max_steps = _ENDLESS
    # The job's versions are the checkpoints.
    given.args.save_strategy = given.args.eval_strategy = "no"
    leases = _Leases(given, steps, evaluate)
    given.add_callback(leases)
    given.training_step = leases.wrapped(given.training_step)
    # Called before the Trainer makes its loader, whose order comes from torch's seed.
    draw_apart()
    return trainer


class _Leases(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Any, steps: int, evaluate: Evaluate | None) -> None:
        self._trainer = trainer
        self._steps = steps
        self._evaluate = evaluate
        self._stepper: Stepper | None = None

    def wrapped(self, training_step: Any) -> Any:
        """Wrap the training step to get its loss, which the Trainer does not pass to callbacks."""

        def step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            count = count_of(inputs)
            loss = training_step(model, inputs, *args, **kwargs)
            if self._stepper is not None:
                self._stepper.batch(count, float(loss))
            return loss

        return step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        self._stepper = Stepper(self._trainer.model, optimizer, steps=self._steps, evaluate=self._evaluate)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._stepper is not None:
            self._stepper.step()
