"""A pretrained model's adapters, trained on chats with masked labels: on ranks, in micro-batches,
and resumed."""

import json
from importlib.util import find_spec

import pytest

from launcher.models.huggingface import HuggingFaceModel
from support.ranks import in_turn, task
from support.tokenizer import SIZE, write_tokenizer

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")

LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}  # fmt: skip
# Frozen weights and masked targets under DeepSpeed are in `test_deepspeed` and `test_targets`.


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("huggingface")
    HuggingFaceModel(vocab_size=SIZE, config=LLAMA).model.save_pretrained(folder / "base")
    write_tokenizer(folder / "base")
    chats = [
        [
            {"role": "user", "content": f"Option {i}?"},
            {"role": "assistant", "content": "It parses. " * (i % 4)},
        ]
        for i in range(60)
    ]
    (folder / "chats.jsonl").write_text(
        "".join(json.dumps({"chat": chat}) + "\n" for chat in chats)
    )
    overrides = [
        "model=pretrained", f"model.pretrained={folder / 'base'}", "model.lora.r=2",
        "model.lora.dropout=0.0",
        "data=jsonl", f"data.files={folder / 'chats.jsonl'}", f"data.tokenizer={folder / 'base'}",
        "data.messages_field=chat", "data.seq_len=48", f"data.cache={folder / 'tokens'}",
    ]  # fmt: skip
    one = task("train", folder / "one", *overrides, "strategy=none")
    small = [*overrides, "trainer.micro_batch_size=2", "strategy=fsdp"]
    two = task("whole_and_interrupted", folder / "two", *small)
    return [results for (results,) in in_turn(folder, [(1, [one]), (2, [two])])]


def test_ranks_and_micro_batches_do_not_change_the_numbers(results):
    (expected,), ranks = results
    for whole in (of_rank["whole"] for of_rank in ranks):
        assert whole["losses"] == pytest.approx(expected["losses"], rel=1e-4)
        assert whole["norms"] == pytest.approx(expected["norms"], rel=1e-3)


def test_a_resumed_training_equals_an_uninterrupted_one(results):
    for of_rank in results[1]:
        whole, first, second = (of_rank[name] for name in ("whole", "first", "second"))
        assert first["losses"] + second["losses"] == whole["losses"]
        assert second["digest"] == whole["digest"]
