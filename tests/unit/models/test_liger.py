import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("transformers")

from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel

needs_liger = pytest.mark.skipif(
    not (find_spec("liger_kernel") and find_spec("triton")), reason="needs liger-kernel"
)
CODE = """
import torch
from launcher.models.huggingface import HuggingFaceModel

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 97}
SIZES |= {"model_type": "llama", "intermediate_size": 64, "max_position_embeddings": 64}
input = torch.randint(0, 97, (2, 16))
target = input.roll(-1, 1).index_fill(1, torch.tensor([3, 15]), -100)
none = torch.full_like(target, -100)
for batch in (input, target), (input, none), {"input_ids": input, "labels": target}:
    results = []
    for liger in (False, True):
        model = HuggingFaceModel(config=dict(SIZES), liger=liger)
        torch.manual_seed(0)
        model.init_weights()
        loss, _ = model(batch)
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        evaluated, records = model.eval()(batch)
        results.append((loss.detach(), evaluated.detach(), records["logits"].detach(), *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
print("equal")
"""


@needs_liger
def test_a_llama_has_the_same_loss_and_gradients():
    """Triton runs its kernels on the CPU in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True
    )
    assert done.stdout.endswith("equal\n"), done.stderr


@needs_liger
def test_an_architecture_that_liger_does_not_know_is_rejected():
    with pytest.raises(ConfigError, match="no loss for model_type=gpt2"):
        HuggingFaceModel(config={"model_type": "gpt2", "n_layer": 1}, vocab_size=8, liger=True)


def test_other_tasks_are_rejected():
    with pytest.raises(ConfigError, match="causal_lm, not masked_lm"):
        HuggingFaceModel("masked_lm", config={"model_type": "bert"}, vocab_size=8, liger=True)


@pytest.mark.skipif(find_spec("liger_kernel") is not None, reason="it is installed")
def test_the_package_is_named():
    with pytest.raises(ConfigError, match=r"torch-launcher\[liger\]"):
        HuggingFaceModel(config={"model_type": "llama"}, vocab_size=8, liger=True)
