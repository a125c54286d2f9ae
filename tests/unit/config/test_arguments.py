"""Bounds of signatures, in calls from Python."""

from functools import partial

import pytest

from launcher import BaseHook, BaseTrainer, CheckpointingHook, LoggingHook, ProgressHook
from launcher.types import PositiveFloat


class Own(BaseHook):
    def __init__(self, wait: "PositiveFloat | str" = 1.0):
        self.wait = wait


class Derived(Own):
    def __init__(self, *rest: object):
        super().__init__(*rest)


COUNT = "should be a whole number greater than 0."


@pytest.mark.parametrize(("call", "sentence"), [
    (partial(ProgressHook, 0), f"ProgressHook: interval=0: {COUNT}"),
    (partial(LoggingHook, interval=-1), f"LoggingHook: interval=-1: {COUNT}"),
    (partial(CheckpointingHook, 5, -1), "CheckpointingHook: keep_previous=-1: should be a whole"),
    (partial(CheckpointingHook, 5, path=""), "CheckpointingHook: path='': should be text that is"),
    (partial(Own, 0), "Own: wait=0: should be a number greater than 0."),
    (partial(Derived, -2.5), "Own: wait=-2.5: should be a number greater than 0."),
    (partial(BaseTrainer, 0), f"BaseTrainer: max_steps=0: {COUNT}"),
    (partial(BaseTrainer, 1, grad_clip=-1.0), "BaseTrainer: grad_clip=-1.0: should be a number"),
    (
        partial(BaseTrainer, 1, gradient_accumulation_steps=-2),
        f"BaseTrainer: gradient_accumulation_steps=-2: {COUNT}",
    ),
    (partial(BaseTrainer, 1, device="gpu"), "device='gpu': should be a device of torch: 'cpu', "),
])  # fmt: skip
def test_a_number_out_of_bounds_is_a_sentence(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value).startswith(sentence)


def test_other_values_are_passed_on():
    assert Own("soon").wait == "soon" and Own(0.5).wait == 0.5 and Derived().wait == 1.0
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Own(waits=0)  # type: ignore[call-arg]
