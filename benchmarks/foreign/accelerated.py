"""accelerate's checkpointing example.

It calls `save_state` after each step, and `load_state` and `skip_first_batches` to resume.
"""

import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional as F

from benchmarks.foreign.toy import EPOCHS, PAUSE, loader, model

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
network = model()
network, optimizer, batches = accelerator.prepare(
    network, torch.optim.AdamW(network.parameters(), lr=1e-2), loader()
)
step, folder = 0, Path("checkpoints")
saved = sorted(folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
if saved:
    accelerator.load_state(str(saved[-1]))
    step = int(saved[-1].name.removeprefix("step_"))
first = step // len(batches)
for epoch in range(first, EPOCHS):
    skipped = step % len(batches) if epoch == first else 0
    for input, target in accelerator.skip_first_batches(batches, skipped) if skipped else batches:
        loss = F.mse_loss(network(input), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(f"epoch {epoch} step {step} loss {loss.item()!r}", flush=True)
        accelerator.save_state(str(folder / f"step_{step}"))
        time.sleep(PAUSE)
