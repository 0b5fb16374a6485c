"""A loop of plain PyTorch, as somebody has it: quadrants of points. The second argument makes it fail."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal


def points(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


def main() -> None:
    model, loader = build_model(), DataLoader(points(1000, seed=1), batch_size=20, shuffle=True)
    held_x, held_y = points(200, seed=2).tensors
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def evaluate():
        return {"accuracy": shoal.mean((model(held_x).argmax(1) == held_y).sum(), len(held_y))}

    with shoal.worker(model, optimizer, evaluate=evaluate) as worker:
        for lease in worker:
            for x, y in lease.batches(loader, steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20):
                if "fail" in sys.argv and lease.number == 2:
                    raise ValueError("the loop broke")
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                lease.log("loss", loss.item() * len(x), len(x))
                lease.log("batch", len(x))


if __name__ == "__main__":
    main()
