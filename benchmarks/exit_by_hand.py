"""The peer of `checkpoint.py` for the time from SIGTERM to exit.

A hand-written script trains, saves once a signal has come, and exits.

    python benchmarks/exit_by_hand.py FOLDER WIDTH LAYERS {bytes,torch.save}
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn


def main(folder: Path, width: int, layers: int, how: str) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: signals.append(signum))
    for step in range(1, 11):
        model(torch.randn(64, width)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            print(time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        if signals:
            save(folder / "state.pt", model, optimizer, how)
            sys.exit(128 + signals[0])


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, how: str) -> None:
    """Save the state.

    With `bytes`, only the bytes of the tensors are written, as fast as possible in a few lines, and
    nothing can load them.
    """
    with open(path, "wb", buffering=0) as file:
        if how == "bytes":
            moments = [moment for state in optimizer.state.values() for moment in state.values()]
            for tensor in [*(parameter.detach() for parameter in model.parameters()), *moments]:
                file.write(tensor.reshape(-1).numpy().data)
        else:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
