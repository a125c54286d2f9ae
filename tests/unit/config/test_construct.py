"""A part is built from its stored settings: variables of the environment are read, other text
stays."""

import pytest
from omegaconf import OmegaConf

from launcher.config.construct import construct
from launcher.config.resolve import stored


def test_stored_settings_get_the_environment_and_keep_shell_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINE", "short")
    dispatch = {
        "_target_": "launcher.dispatch.slurm.SlurmDispatch",
        "partition": "${oc.env:MINE}",
        "account": "${my.account}",
        "setup": ["cd \\${HOME}/${oc.env:MINE}", "echo \\${MINE}"],
        "time": 5,
    }
    config = OmegaConf.create({"dispatch": dispatch, "my": {"account": "a-${oc.env:MINE}"}})
    built = construct(stored(config)["dispatch"])
    assert (built.partition, built.account, built.time) == ("short", "a-short", 5)
    assert built.setup == ["cd ${HOME}/short", "echo ${MINE}"]
