"""The LightningModule. It does not know Shoal."""

import lightning
import torch
from spirals import build_model
from torch import nn


class Spirals(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = build_model()

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)
