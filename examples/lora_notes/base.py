"""A base to start from, where none can be downloaded: `python examples/lora_notes/base.py base.safetensors`.

Trains the task's base, without adapters, to read Python's own manual, which is text that every machine has. A person
with a pretrained model does not need this file.
"""

import argparse
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from safetensors.torch import save_file
from task import LONGEST, Notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    text = torch.from_numpy(np.frombuffer("\n".join(topics.values()).encode(), np.uint8).copy()).long()
    torch.manual_seed(0)
    model = Notes().model().float()
    base = {name: value.requires_grad_("lora_" not in name) for name, value in model.named_parameters()}
    base = {name: value for name, value in base.items() if value.requires_grad}
    optimiser = torch.optim.AdamW(base.values(), lr=2e-3)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=given.steps + 1)
    began_s = time.monotonic()
    for step in range(given.steps):
        starts = torch.randint(len(text) - LONGEST, (16,))
        tokens = torch.stack([text[start : start + LONGEST] for start in starts.tolist()])
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(base.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        pace.step()
        if step % 50 == 0 or step == given.steps - 1:
            print(f"step {step}: loss {loss.item():.3f} after {time.monotonic() - began_s:.0f} s", flush=True)
    save_file({name: value.detach().bfloat16() for name, value in base.items()}, given.out)
    print(f"{given.out}: {sum(value.numel() for value in base.values()):,} values")


if __name__ == "__main__":
    main()
