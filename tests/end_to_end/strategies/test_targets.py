"""With masked targets, numbers do not depend on micro-batches or ranks: each target counts once."""

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from launcher.models.gpt import GPT
from support.masked import Masked
from support.ranks import by_name, task

STRATEGIES = {"none": ["strategy=none"], "ddp": ["strategy=ddp"], "fsdp": ["strategy=fsdp"]}
if find_spec("deepspeed"):
    STRATEGIES |= {
        f"zero {n}": ["strategy=deepspeed", f"strategy.zero_stage={n}"] for n in (0, 2, 3)
    }
CASES = [("none", 12), ("fsdp", 6), *((name, 1) for name in STRATEGIES)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    tasks = {
        case: task(
            "masked", folder / str(case), *STRATEGIES[case[0]], "trainer.max_steps=3", micro=case[1]
        )
        for case in CASES
    }
    alone = {case: tasks.pop(case) for case in CASES if case[0] == "none"}
    one, two = by_name(folder, (1, alone), (2, tasks))
    return one | two


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_target_counts_once(results, case):
    expected = results["none", 12][0]
    for mine in results[case]:
        assert mine["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert mine["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert mine["val"] == pytest.approx(expected["val"], rel=1e-5)


def test_the_held_out_loss_is_the_mean_over_targets(results):
    found = results["none", 1][0]
    model = GPT(19, 12, dim=16, num_layers=2, num_heads=2)
    model.load_state_dict({name: torch.tensor(values) for name, values in found["weights"].items()})
    model.cos, model.sin = map(torch.tensor, found["tables"])
    inputs, targets = (torch.stack(part) for part in zip(*Masked(17), strict=True))
    loss = F.cross_entropy(model.logits(inputs).flatten(0, 1), targets.flatten())
    assert found["val"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
