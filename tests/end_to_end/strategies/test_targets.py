"""With masked targets, numbers do not depend on micro-batches or ranks: each target counts once."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from launcher.models.gpt import GPT
from support.masked import Masked
from support.ranks import together

LAYOUTS = {1: {"none": ["strategy=none"]}, 2: {"ddp": ["strategy=ddp"], "fsdp": ["strategy=fsdp"]}}
if find_spec("deepspeed"):
    LAYOUTS[2] |= {
        f"zero {n}": ["strategy=deepspeed", f"strategy.zero_stage={n}"] for n in (0, 2, 3)
    }
CASES = [(1, "none", 12), (2, "fsdp", 6)]
CASES += [(ranks, name, 1) for ranks, layouts in LAYOUTS.items() for name in layouts]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    results: dict[tuple[int, str, int], Any] = {}
    for ranks, layouts in LAYOUTS.items():
        cases = [case for case in CASES if case[0] == ranks]
        tasks = [
            (
                "masked",
                {
                    "folder": str(folder / f"{case}"),
                    "overrides": layouts[case[1]],
                    "micro": case[2],
                },
            )
            for case in cases
        ]
        results |= zip(cases, together(ranks, folder / str(ranks), tasks), strict=True)
    return results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_target_counts_once(results, case):
    expected = results[1, "none", 12][0]
    for mine in results[case]:
        assert mine["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert mine["val"] == pytest.approx(expected["val"], rel=1e-5)


def test_the_held_out_loss_is_the_mean_over_targets(results):
    found = results[1, "none", 1][0]
    model = GPT(19, 12, dim=16, num_layers=2, num_heads=2)
    model.load_state_dict({name: torch.tensor(values) for name, values in found["weights"].items()})
    cos, sin = found["tables"]
    model.cos, model.sin = torch.tensor(cos), torch.tensor(sin)
    inputs, targets = (torch.stack(part) for part in zip(*Masked(17), strict=True))
    loss = F.cross_entropy(model.logits(inputs).flatten(0, 1), targets.flatten())
    assert found["val"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
