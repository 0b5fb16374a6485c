"""How many test digits a saved model gets right: the same judge for every peer. Runs in the peer's environment.

python evaluate.py MODEL TEST.npz prints one number between 0 and 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "flower_app"))


def network() -> nn.Module:
    from digits import task  # type: ignore[import-not-found,unused-ignore]

    model: nn.Module = task.network()
    return model


def state_of(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from shoal.wire import tensors

        with path.open("rb") as file:
            return {name: torch.from_numpy(np.array(value)) for name, value in tensors.read(file)[0].items()}
    # Tensors and plain containers alone: nothing in the file is run.
    held = torch.load(path, weights_only=True)  # noqa: TID251
    state: dict[str, Tensor] = held.get("model", held)
    return {name: torch.as_tensor(value) for name, value in state.items()}


def main() -> None:
    model = network()
    model.load_state_dict(state_of(Path(sys.argv[1])))
    held = np.load(sys.argv[2])
    with torch.inference_mode():
        guesses = model((torch.from_numpy(held["x"]).float() - 33.3) / 78.6).argmax(1).numpy()
    print(float((guesses == held["y"]).mean()))


if __name__ == "__main__":
    main()
