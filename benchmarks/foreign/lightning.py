"""PyTorch Lightning.

`epoch` saves after each epoch, `step` after each step; both resume from the newest checkpoint.
"""

import sys
import time
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.nn import functional as F

from benchmarks.foreign.toy import EPOCHS, PAUSE, loader, model


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = F.mse_loss(self.network(batch[0]), batch[1])
        print(
            f"epoch {self.current_epoch} step {self.global_step + 1} loss {loss.item()!r}",
            flush=True,
        )
        time.sleep(PAUSE)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


warnings.filterwarnings("ignore")
pl.seed_everything(0)
when: dict[str, Any] = (
    {"every_n_train_steps": 1} if sys.argv[1] == "step" else {"every_n_epochs": 1}
)
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint("checkpoints", save_last=True, **when)],
)
trainer.fit(Module(), loader(), ckpt_path="last")
