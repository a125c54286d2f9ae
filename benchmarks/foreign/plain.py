"""A plain loop.

With a file name it saves model and optimizer after each epoch and loads them; without, it does not.
"""

import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.foreign.toy import EPOCHS, PAUSE, loader, model

file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
torch.manual_seed(0)
network = model()
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
step = 0
first = 0
if file is not None and file.exists():
    saved = torch.load(file, weights_only=True)
    network.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step, first = saved["step"], saved["epoch"]
for epoch in range(first, EPOCHS):
    for input, target in loader():
        loss = F.mse_loss(network(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"epoch {epoch} step {step} loss {loss.item()!r}")
        time.sleep(PAUSE)
    if file is not None:
        torch.save(
            {
                "model": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "epoch": epoch + 1,
            },
            file,
        )
