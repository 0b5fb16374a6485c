"""A training loop of plain PyTorch, as it was."""

import torch
from spirals import accuracy, build_model, spirals
from torch import nn
from torch.utils.data import DataLoader

model, loader = build_model(), DataLoader(spirals(3000, seed=1), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {accuracy(model):.1%} of held-out points right")
