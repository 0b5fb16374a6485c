"""The trainer process: the only long-lived one that imports torch. Run as ``python -m shoal.trainer.child``."""

from __future__ import annotations

from shoal.errors import Misuse
from shoal.trainer import child_loop
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shared import SharedVectors


def build(settings: TrainerSettings, shared: SharedVectors) -> child_loop.Trainer:
    """Import torch only now, when the process can already report where it is: on a small board this takes minutes."""
    try:
        import torch
    except ImportError as error:
        raise Misuse(f"this device cannot train without PyTorch: pip install 'torch>=2.11' ({error})") from None
    from shoal.trainer.importer import is_script

    torch.set_num_threads(settings.torch_threads)
    if is_script(settings.entry):
        from shoal.trainer.script import ScriptTrainer

        return ScriptTrainer(settings, shared)
    from shoal.trainer.steps import TorchTrainer

    return TorchTrainer(settings, shared)


if __name__ == "__main__":
    child_loop.main(build)
