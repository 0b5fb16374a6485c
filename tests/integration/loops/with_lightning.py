"""The same points with a LightningModule and a Trainer."""

import lightning
import torch
from plain import build_model, points
from torch import nn
from torch.utils.data import DataLoader

from shoal.lightning import ShoalCallback


class Quadrants(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = build_model()

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=1, callbacks=[ShoalCallback(steps=20)], **quiet)
    trainer.fit(Quadrants(), DataLoader(points(1000, seed=1), batch_size=20, shuffle=True))
    print("done after", trainer.global_step, "steps")
