"""``shoal.lightning.ShoalCallback``: a Lightning Trainer whose steps are those of leases. Needs Lightning.

    trainer = lightning.Trainer(max_epochs=3, callbacks=[ShoalCallback(steps=50)])

Under ``shoal run`` a device trains until the job ends, whatever the Trainer's own limits are. Started by hand, the
callback does nothing.
"""

from __future__ import annotations

from typing import Any

from shoal.loop import Evaluate, Stepper, count_of, draw_apart, is_lent

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

#: For Lightning: no limit.
_ENDLESS = -1


class ShoalCallback(Callback):  # type: ignore[misc]
    """After every so many steps of the optimiser: send what changed, and go on from the next version."""

    def __init__(self, steps: int = 50, *, evaluate: Evaluate | None = None) -> None:
        """``evaluate`` is as for ``shoal.worker``."""
        super().__init__()
        self._steps = steps
        self._evaluate = evaluate
        self._stepper: Stepper | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if is_lent() and stage == "fit":
            trainer.fit_loop.max_epochs = _ENDLESS
            trainer.fit_loop.epoch_loop.max_steps = _ENDLESS

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if is_lent():
            # Before Lightning begins to read the loader.
            draw_apart()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if is_lent():
            optimizers = trainer.optimizers
            optimizer = optimizers[0] if len(optimizers) == 1 else None
            self._stepper = Stepper(pl_module, optimizer, steps=self._steps, evaluate=self._evaluate)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._stepper is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._stepper.batch(count_of(batch), None if loss is None else float(loss))
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch:
            self._stepper.step()
