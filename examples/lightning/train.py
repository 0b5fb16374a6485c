"""The same Trainer, lent to a cluster: `shoal run train.py`. By hand, `python train.py`, it does as before."""

import lightning
from module import Spirals
from spirals import accuracy, counted, spirals
from torch.utils.data import DataLoader

import shoal
from shoal.lightning import ShoalCallback  # new

module, loader = Spirals(), DataLoader(spirals(3000, seed=1), batch_size=32, shuffle=True)
lent = ShoalCallback(steps=50, evaluate=lambda: {"accuracy": shoal.mean(*counted(module.net))})  # new
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=3, callbacks=[lent], **quiet)  # new: callbacks
trainer.fit(module, loader)
print(f"{accuracy(module.net):.1%} of held-out points right")
