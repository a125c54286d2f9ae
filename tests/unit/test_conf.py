"""Every YAML of conf/ composes, is valid, and matches the signature of its class."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from launcher.config.options import groups, main_folder
from launcher.config.schema.signature import signature_of
from support.composition import composed, validate

FOLDER = Path(str(main_folder()))
OPTIONS = [(group, option) for group, names in groups([FOLDER]).items() for option in names]
COLLECTIONS = ("hooks", "tracker")
"""Groups whose options can all be chosen at once."""
APART = ("data", "experiment", "model")
"""Groups whose options need others next to them."""
TOGETHER = {
    group: sorted(names)
    for group, names in groups([FOLDER]).items()
    if group not in COLLECTIONS + APART
}
CHOICES = [
    *({group: option} for group, option in OPTIONS if group in APART),
    {group: f"[{','.join(groups([FOLDER])[group])}]" for group in COLLECTIONS},
    *(
        {group: names[place % len(names)] for group, names in TOGETHER.items()}
        for place in range(max(map(len, TOGETHER.values())))
    ),
]
"""Choices in which each option is once."""
SIZES = "data.vocab_size=256 data.seq_len=16"
FILES = "data.files=tests data.tokenizer=tests data.vocab_size=256"
LINEAR = "{_target_:torch.nn.Linear,in_features:64,out_features:10}"
DATASET = "torch.utils.data.TensorDataset"
NEEDS = {
    "model=mlp": "data=digits",
    "model=supervised": f"data=digits +model.module={LINEAR}",
    "model=pretrained": "model.pretrained=a/folder",
    "data=digits": "model=mlp",
    "data=tokens": f"data.files='{__file__}'",
    "data=jsonl": FILES,
    "data=parquet": FILES,
    "data=table": f"data.files='{__file__}' data.target=price data.features=[rooms,area] model=mlp"
    " data.num_classes=2",
    "data=mixture": f"data.sources={{a:{{_target_:{DATASET},weight:2}}}} {SIZES}",
    "data=datasets": f"data.path=text data.files='{__file__}' {SIZES}",
    "data=custom": f"data.dataset={{_target_:{DATASET}}} {SIZES}",
    "job=predict": f"data.predict='{__file__}'",
}
"""Other options to choose so that an option fits."""
EXTRAS = {("model", "huggingface"): "transformers"}
"""Options that need a package which is not always installed."""
NOT_BUILT = [("model", "pretrained")]
"""Options that cannot be built here: there are no weights."""


def targets(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["_target_"]} if "_target_" in node else set()
        return own.union(*map(targets, node.values()))
    return set()


def test_every_file_is_an_option_of_a_group():
    files = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.yaml")}
    options = {Path(group, f"{option}.yaml") for group, option in OPTIONS}
    others = {"config.yaml", "hydra/plugins/launcher.yaml", "hydra/help/launcher.yaml"}
    assert files - options == set(map(Path, others))


@pytest.mark.slow
@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: " ".join(choices.values()))
def test_every_option_is_valid_and_matches_its_class(choices):
    """The signature read from source is the one that Python sees, and each part that is not a
    partial can be built."""
    words = [f"{group}={option}" for group, option in choices.items()]
    config = composed([*words, *" ".join(NEEDS.get(word, "") for word in words).split()])
    validate(config)
    for group, option in choices.items():
        check_option(group, option, OmegaConf.select(config, group))


def check_option(group: str, option: str, node: Any) -> None:
    for target in targets(OmegaConf.to_container(node, resolve=True) if node is not None else {}):
        read, real = signature_of(target), inspect.signature(get_object(target))
        named = [
            each
            for each in real.parameters.values()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        assert read.names == [each.name for each in named]
    if (group, option) in EXTRAS:
        pytest.importorskip(EXTRAS[group, option])
    if (group, option) in NOT_BUILT:
        return
    for part in node.values() if group in COLLECTIONS else [node]:
        if isinstance(part, DictConfig) and "_target_" in part:
            recursive = group != "job" and part.get("_recursive_", True)
            assert instantiate(part, _recursive_=recursive) is not None
