"""The trainer process of a device without PyTorch. Run as ``python -m shoal.trainer.portable.child``."""

from __future__ import annotations

from shoal.errors import Misuse
from shoal.extras import install_command
from shoal.trainer import child_loop
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shared import SharedVectors


def build(settings: TrainerSettings, shared: SharedVectors) -> child_loop.Trainer:
    """Import onnxruntime only now, when the process can already say where it is."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise Misuse(f"this device cannot train: {install_command('onnx')} ({error})") from None
    from shoal.trainer.portable.steps import OnnxTrainer

    return OnnxTrainer(settings, shared)


if __name__ == "__main__":
    child_loop.main(build)
