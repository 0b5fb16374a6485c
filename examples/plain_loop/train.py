"""The same loop, lent to a cluster: `shoal run train.py`. By hand, `python train.py`, it trains alone."""

import torch
from spirals import build_model, counted, spirals
from torch import nn
from torch.utils.data import DataLoader

import shoal

model, loader = build_model(), DataLoader(spirals(3000, seed=1), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
with shoal.worker(model, optimizer, evaluate=lambda: {"accuracy": shoal.mean(*counted(model))}) as worker:  # new
    for lease in worker:  # new: the version is in the model
        for x, y in lease.batches(loader, steps=50):  # new: ends after 50 steps or at the deadline
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lease.log("loss", loss.item() * len(x), len(x))  # new
