"""The texts by which a trace compares values; test_resume_check.py has what it names."""

import itertools
from types import SimpleNamespace
from typing import Any

import torch

from launcher.proof.trace import plain, user_parts


def test_texts_of_values_are_equal_for_equal_values_alone():
    tensors = torch.ones(2), torch.zeros(2)
    values: list[Any] = [1, 1.0, "1", [1, 2], {"a": {3, 4}}, itertools.count(3), *tensors, None]
    assert len({plain(value) for value in values}) == len(values)
    assert plain({"a": {4, 3}}) == plain({"a": {3, 4}}) and len(plain("x" * 500)) < 80


def test_attributes_of_a_sharded_module_are_those_of_its_author():
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.__own = 3, 4
            setattr(self, "__composable_api_state_key_8652951a", {print: 1})

    trainer: Any = SimpleNamespace(
        hooks=[], data_loader=None, model=Own(), optimizer=None, lr_scheduler=None
    )
    trainer.own_attributes, trainer.context = dict, SimpleNamespace(hook_names={})
    parts = user_parts(trainer).items()
    of_model = {path: text for path, text in parts if path.startswith("model")}
    assert of_model == {"model.count": "3", "model._Own__own": "4"}
