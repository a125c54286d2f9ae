"""Messages of an attempt about the modes of a model."""

import logging

from torch import nn

from launcher.train.attempt_modes import AttemptModes


def test_parts_are_named_once_and_not_all_of_many(caplog):
    model, modes = (
        nn.Sequential(*(nn.Dropout().eval() for _ in range(10))),
        AttemptModes(logging.getLogger("launcher")),
    )
    modes.start(model)
    modes.report()
    modes.report()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.endswith(
        "model.train(): 0, 1, 2, 3, 4, 5, 6, 7 and 2 more. A hook may set a part to eval(), and it"
        " stays so."
    )


def test_the_model_itself_is_named(caplog):
    modes = AttemptModes(logging.getLogger("launcher"))
    modes.start(nn.Sequential(nn.Dropout()).eval())
    modes.report()
    assert "by model.train(): the model." in caplog.text


def test_modes_of_unknown_modules_are_reported(caplog):
    AttemptModes(logging.getLogger("launcher")).restore(nn.Linear(2, 2), {"gone": False})
    assert "modules that the model does not have: gone." in caplog.text


def test_another_start_keeps_the_modes(caplog):
    model, modes = nn.Sequential(nn.Dropout(), nn.Dropout()), AttemptModes(logging.getLogger())
    modes.start(model)
    model[0].eval()
    modes.end(model)
    model.eval()
    modes.start(model)
    modes.report()
    assert [module.training for module in model.modules()] == [True, False, True]
    assert not caplog.records
