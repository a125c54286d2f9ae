"""Ids stay what they are: a command of next year finds the runs of today."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.identity.record_entry import read_identity
from launcher.config.identity.run_id import digest, identity_to_hash
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.run_config import read
from launcher.config.secrets import config_to_store
from launcher.rundir.record_format import IDENTITY_VERSION
from support.paths import ROOT

FROZEN = yaml.safe_load(
    (ROOT / "tests" / "unit" / "config" / "frozen_ids.yaml").read_text(encoding="utf-8")
)


BASE: Any = OmegaConf.create(FROZEN["base"])


def id_of(config: dict[str, Any], base: Any = BASE) -> str:
    """The id of a configuration, which is the same before and after it is resolved."""
    merged: Any = OmegaConf.merge(base, OmegaConf.create(config))
    unresolved = digest(identity_to_hash(merged, to_plain(merged)))
    run, issues = read(merged)
    known = read_identity(run.plain["run"])
    assert not issues and known is not None and known[0] == unresolved
    return unresolved


def test_the_frozen_ids_are_those_of_this_version():
    assert FROZEN["version"] == IDENTITY_VERSION and len(FROZEN["cases"]) == 40


@pytest.mark.parametrize("case", FROZEN["cases"], ids=lambda case: case["what"])
def test_an_id_changes_only_with_the_version_of_the_identity(case, monkeypatch):
    monkeypatch.setenv("FROZEN_ROOT", "/data/set")
    assert id_of(case["config"]) == case["id"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3)
    ),
)


def normal(value: Any) -> Any:
    """A value with its type, whole floats as integers: what counts of it."""
    if isinstance(value, dict):
        return sorted((key, normal(item)) for key, item in value.items())
    if isinstance(value, list):
        return ["list", *map(normal, value)]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return [type(value).__name__, repr(value)]


@settings(max_examples=25)
@given(one=VALUES, other=VALUES)
def test_configurations_have_one_id_only_if_their_values_are_equal(one, other):
    base = OmegaConf.create({"run": FROZEN["base"]["run"]})
    first, second = (config_to_store({}, {"own": value}) for value in (one, other))
    assert (id_of(first, base) == id_of(second, base)) == (normal(one) == normal(other))
