"""Batches on their way to a device."""

from collections import namedtuple
from itertools import islice

import pytest
import torch

from launcher.data import EvaluationLoader, ResumableLoader
from launcher.data.transfer import map_tensors, on_device

Pair = namedtuple("Pair", "x y")


class Graph:
    """An object that moves itself."""

    def __init__(self, device="cpu"):
        self.device = str(device)

    def to(self, device):
        return Graph(device)


def test_map_tensors_keeps_the_shape_of_a_batch():
    batch = {
        "pair": Pair(torch.ones(2), [torch.ones(1), "name"]),
        "count": 3,
        "tuple": (torch.ones(1),),
    }
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert isinstance(doubled["pair"], Pair) and doubled["pair"].x.tolist() == [2, 2]
    assert doubled["pair"].y[1] == "name"
    assert doubled["count"] == 3
    assert doubled["tuple"][0].tolist() == [2]
    graph = Graph()
    assert map_tensors([graph], torch.clone)[0] is graph
    assert map_tensors([graph], torch.clone, lambda other: other.to("meta"))[0].device == "meta"


def test_a_batch_on_the_cpu_is_the_very_same():
    batch = (torch.ones(1), Graph())
    assert next(on_device([batch], torch.device("cpu"))) is batch


def test_other_devices_get_each_batch():
    """The meta device stands for one that is neither CPU nor CUDA."""
    moved = list(on_device([(torch.ones(3), Graph())] * 2, torch.device("meta")))
    assert len(moved) == 2 and moved[0][0].device.type == "meta" and moved[0][1].device == "meta"


class Numbers:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((1000,), index)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_cuda_is_one_batch_ahead_and_counts_what_was_yielded(num_workers):
    loader = ResumableLoader(
        Numbers(), seed=0, micro_batch_size=2, num_workers=num_workers, device="cuda"
    )
    batches = iter(loader)
    got = []
    for number, batch in enumerate(islice(batches, 15), start=1):
        assert batch.is_cuda and loader.samples == 2 * number
        torch.mm(torch.rand(500, 500, device="cuda"), torch.rand(500, 500, device="cuda"))
        got += batch[:, 0].tolist()
    batches.close()
    cpu = ResumableLoader(Numbers(), seed=0, micro_batch_size=2)
    assert got == [number for batch in islice(cpu, 15) for number in batch[:, 0].tolist()]
    evaluated = [
        n
        for b in EvaluationLoader(Numbers(), 3, 0, 1, num_workers, "cuda")
        for n in b[:, 0].tolist()
    ]
    assert evaluated == list(range(20))
