"""Hugging Face Trainer, which saves every second step and resumes from the newest checkpoint."""

import time
from typing import Any

import torch
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from benchmarks.foreign.toy import BATCH, EPOCHS, PAUSE, dataset, model


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = model()

    def forward(self, input: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.mse_loss(self.network(input), labels)}


class Print(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            print(
                f"epoch {int((state.global_step - 1) // 10)} step {state.global_step} loss"
                f" {logs['loss']!r}",
                flush=True,
            )
            time.sleep(PAUSE)


samples = [{"input": input, "labels": label} for input, label in dataset()]
arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=BATCH,
    learning_rate=1e-2,
    logging_steps=1,
    save_steps=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
)
torch.manual_seed(0)
trainer = Trainer(Network(), arguments, train_dataset=samples, callbacks=[Print()])  # type: ignore[arg-type]
try:
    last = get_last_checkpoint("checkpoints")
except FileNotFoundError:
    last = None
trainer.train(resume_from_checkpoint=last)
