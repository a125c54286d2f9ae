"""The peer of `goodput.py`: the same model and data with trainloop.

Its trainer and checkpointing hook are in a Hydra application that hydra-submitit-launcher submits.

On the warning signal the hook saves and then waits (`exit_wait`), so that SLURM ends and requeues
the job: a task that left within the grace would not be requeued.
"""

import signal
import time
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig
from sklearn.datasets import load_digits
from torch import nn
from trainloop import BaseHook, BaseTrainer, CheckpointingHook


class Pace(BaseHook):
    """Makes a step take its time, and notes each one that was computed."""

    def __init__(self, seconds: float, notes: Path):
        self.seconds, self.notes = seconds, notes

    def on_after_step(self, trainer: BaseTrainer) -> None:
        time.sleep(self.seconds)
        with self.notes.open("a") as file:
            file.write(f"{trainer.step} {time.time()}\n")


class Endless:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        while True:
            yield from self.loader


class Trainer(BaseTrainer):
    def __init__(self, config: DictConfig, workspace: Path):
        super().__init__(max_steps=config.steps, workspace=workspace, device="cpu")
        self.config = config

    def build_data_loader(self):
        digits = load_digits()
        x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        dataset = torch.utils.data.TensorDataset(x, y)
        return Endless(
            torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
        )

    def build_model(self):
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def build_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def build_hooks(self):
        warning = signal.Signals[self.config.signal]
        saves = CheckpointingHook(self.config.interval, exit_signals=[warning], exit_wait=600.0)
        return [Pace(self.config.pace, self.workspace / "steps.txt"), saves]

    def forward(self, input):
        loss = nn.functional.cross_entropy(self.model(input[0]), input[1])
        return loss, {}


@hydra.main(config_path=None, config_name=None, version_base="1.3")
def main(config: DictConfig) -> None:
    torch.manual_seed(config.seed)
    workspace = Path(config.outputs) / f"seed-{config.seed}"
    workspace.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, workspace)
    trainer.train()
    torch.save(trainer.model.state_dict(), workspace / "final.pt")


if __name__ == "__main__":
    main()
