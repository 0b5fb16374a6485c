"""Handwritten digits in a loop of your own, with products done by devices that need not be trusted.

python examples/offload/train.py                                  # nobody's help
python examples/offload/train.py ~/pool-a ~/pool-b                # masks between two pools that do not collude
python examples/offload/train.py ~/pool-a --privacy none          # executors may see the examples
python examples/offload/train.py ~/pool-a ~/pool-b --send all     # also what is not worth it, to see it work
"""

import argparse
import logging
import time

import torch
from torch import nn

import shoal

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("pools", nargs="*", help="homes of clusters that you operate (shoal up --home)")
parser.add_argument("--privacy", default="mask")
parser.add_argument("--verify", default="freivalds")
parser.add_argument("--send", default="worth", help="worth: what is faster away; all: everything that can be sent")
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=500)
parser.add_argument("--steps", type=int, default=120)
given = parser.parse_args()

# What is sent and what is not, and why.
logging.basicConfig(level=logging.INFO, format="%(message)s")

images, labels = shoal.data.mnist("train")
x, y = torch.from_numpy(images).flatten(1).float() / 255, torch.from_numpy(labels)
images, labels = shoal.data.mnist("test")
test_x, test_y = torch.from_numpy(images).flatten(1).float() / 255, torch.from_numpy(labels)

model = nn.Sequential(nn.Linear(784, given.width), nn.ReLU(), nn.Linear(given.width, 10))

if given.pools:
    # The one line. Layers are changed in place; parameters, state_dict and autograd stay as they are.
    model = shoal.offload(model, given.pools, privacy=given.privacy, verify=given.verify, send=given.send)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
began_s = time.monotonic()
for _ in range(given.steps):
    chosen = torch.randint(0, len(x), (given.batch,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
    loss.backward()
    optimizer.step()
took_s = time.monotonic() - began_s

with torch.no_grad():
    right = (model(test_x).argmax(1) == test_y).float().mean().item()
print(f"{right:.1%} of held-out digits right, {given.steps} steps in {took_s:.1f} s")
