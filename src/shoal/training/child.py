"""The trainer process: the only long-lived one that imports torch. Run as ``python -m shoal.training.child``."""

from __future__ import annotations

from shoal.errors import Misuse
from shoal.training import serve
from shoal.training.protocol import TrainerSettings
from shoal.training.shared import SharedVectors


def build(settings: TrainerSettings, shared: SharedVectors) -> serve.Trainer:
    """Import torch only now, when the process can already say where it is: a small board takes minutes."""
    try:
        import torch
    except ImportError as error:
        raise Misuse(f"this device cannot train, for want of PyTorch: pip install 'torch>=2.11' ({error})") from None
    from shoal.training.steps import TorchTrainer

    torch.set_num_threads(settings.torch_threads)
    return TorchTrainer(settings, shared)


if __name__ == "__main__":
    serve.main(build)
