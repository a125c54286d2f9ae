"""The names of repositories that take an export."""

import pytest

from launcher.checkpoint.push import check_repository
from launcher.errors import ConfigError


@pytest.mark.parametrize("name", ["net", "a/b/c", "a b/c", "/net", "a/", "", "hf://a/b"])
def test_a_name_that_is_no_repository(name):
    with pytest.raises(ConfigError, match="should be owner/name"):
        check_repository("job.push", name)


@pytest.mark.parametrize("name", [None, "lab/net", "a-b_c/d.e-1"])
def test_a_name_of_a_repository(name):
    check_repository("job.push", name)
