"""A forward pass that changes a trained parameter; `end_to_end/strategies/test_foreign_models.py`
has the ranks."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.optim.precision import Precision
from launcher.strategies.forward_changes import reject_changes
from launcher.strategies.none import NoStrategy
from launcher.strategies.step import StepPlan


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("changes", [False, True])
def test_a_change_is_rejected_where_it_depends_on_the_lanes(lanes, is_frozen, changes):
    strategy = NoStrategy()
    strategy.setup(StepPlan(lanes=lanes), Precision("fp32"), "cpu")
    strategy.model = nn.Sequential(nn.Embedding(4, 4, max_norm=0.1 if changes else None))
    strategy.model.requires_grad_(not is_frozen)
    is_rejected = changes and not is_frozen and lanes is not None
    expected = pytest.raises(ConfigError, match=r"changes the parameter 0\.weight itself")
    with expected if is_rejected else nullcontext(), reject_changes(strategy, is_compiled=False):
        strategy.model(torch.arange(4))
