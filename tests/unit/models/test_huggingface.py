import sys
from importlib.util import find_spec

import pytest
import torch
from omegaconf import OmegaConf

from launcher import load_model
from launcher.checkpoint.export_weights import write_model
from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel
from launcher.models.lora import Lora
from launcher.strategies.recompute import recompute_units
from support import python
from support.tokenizer import write_tokenizer
from support.transformers_configs import GPT2

TARGET = "launcher.models.huggingface.HuggingFaceModel"
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32, "bos_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": True,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}  # fmt: skip
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 1, "qkv_bias": True}
VIT = BERT | IMAGES | {"model_type": "vit"}
del VIT["max_position_embeddings"]
T5 = {
    "model_type": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 24,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
CONFIGS = {
    "causal_lm": GPT2, "masked_lm": BERT, "seq2seq_lm": T5, "sequence_classification": BERT,
    "token_classification": BERT, "image_classification": VIT,
}  # fmt: skip
TOKENS = torch.arange(16).reshape(2, 8)
MASKED = torch.tensor([[-100, -100, 1, 2, 0, 1, 2, 0], [-100, 1, 2, -100, -100, -100, -100, -100]])
PADDED = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
BATCHES = {
    "causal_lm": {"input_ids": TOKENS, "labels": MASKED, "attention_mask": torch.ones_like(TOKENS)},
    "masked_lm": {"input_ids": TOKENS, "labels": MASKED},
    "seq2seq_lm": {"input_ids": TOKENS, "labels": MASKED},
    "sequence_classification": {"input_ids": TOKENS, "labels": torch.tensor([0, 2])},
    "token_classification": {"input_ids": TOKENS, "labels": MASKED},
    "image_classification": {
        "pixel_values": torch.linspace(0, 1, 128).reshape(2, 1, 8, 8),
        "labels": torch.tensor([0, 2]),
    },
}


BUILD = f"""
import logging
logging.basicConfig()
from launcher.models.huggingface import HuggingFaceModel
HuggingFaceModel(vocab_size=64, config={GPT2!r})
"""


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs the extra fp8")
def test_a_model_is_built_without_warnings_of_torchao():
    built = python.run("-c", BUILD, real=True, check=True)
    assert "torchao" not in built.stderr and "WARNING" not in built.stderr, built.stderr


def test_without_transformers_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'torch-launcher\[huggingface\]'"):
        HuggingFaceModel(vocab_size=64, config=GPT2)


class TestWithTransformers:
    @pytest.fixture(autouse=True)
    def transformers(self, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        return pytest.importorskip("transformers")

    @pytest.mark.parametrize(
        ("config", "layer"), [(GPT2, "GPT2Block"), (LLAMA, "LlamaDecoderLayer")]
    )
    def test_a_config_built_one_is_initialized(self, config, layer):
        with torch.device("meta"):
            model = HuggingFaceModel(vocab_size=64, seq_len=8, config=config)
        model.to_empty(device="cpu")
        torch.manual_seed(0)
        model.init_weights()
        here = HuggingFaceModel(vocab_size=64, seq_len=8, config=config)
        torch.manual_seed(0)
        here.init_weights()
        tensors = [*model.parameters(), *model.buffers()], [*here.parameters(), *here.buffers()]
        assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
        assert [type(unit).__name__ for unit in model.shard_units()] == [layer] * 2

    def test_the_loss_is_that_of_transformers(self):
        model = HuggingFaceModel(vocab_size=64, config=GPT2).eval()
        tokens = torch.randint(0, 64, (2, 9))
        target = tokens[:, 1:].clone()
        target[0, :3] = -100
        loss, records = model((tokens[:, :-1], target))
        labels = tokens.clone()
        labels[0, 1:4] = -100
        torch.testing.assert_close(loss, model.model(input_ids=tokens, labels=labels).loss)
        assert 0 <= records["accuracy"].item() <= 1

    def test_pretrained_weights_stay(self, tmp_path):
        model = HuggingFaceModel(vocab_size=64, config=GPT2)
        model.model.to(torch.bfloat16).save_pretrained(tmp_path)
        with torch.device("meta"):
            loaded = HuggingFaceModel(vocab_size=60, seq_len=8, pretrained=str(tmp_path))
        loaded.init_weights()
        assert loaded.training
        stored = model.model.state_dict()
        for name, tensor in loaded.model.state_dict().items():
            assert tensor.dtype == torch.float32 and torch.equal(tensor, stored[name].float())

    @pytest.mark.parametrize(
        ("task", "config"),
        [
            *CONFIGS.items(),
            ("sequence_classification", LLAMA | {"pad_token_id": 0}),
            ("token_classification", GPT2),
        ],
    )
    def test_recomputed_layers_have_the_same_gradients(self, task, config):
        grads = []
        is_text = task != "image_classification"
        size, mask = (64, {"attention_mask": PADDED}) if is_text else (None, {})
        for recompute in (False, True):
            model = HuggingFaceModel(task, vocab_size=size, num_labels=3, config=config)
            if recompute:
                recompute_units(model, 1)
            torch.manual_seed(0)
            model.init_weights()
            model(BATCHES[task] | mask)[0].backward()
            grads.append([p.grad for p in model.parameters() if p.grad is not None])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({}, r"^model\.pretrained: set a folder or a name"),
            ({"config": GPT2, "pretrained": "gpt2"}, r"set only one of the two"),
            ({"config": GPT2, "vocab_size": None}, r"^model\.vocab_size=null: .*data\.vocab_size"),
            ({"config": GPT2, "lora": Lora(r=2)}, r"^model\.lora\.r=2: .*set model\.pretrained"),
            (
                {"config": {"model_type": "gpt22"}},
                r"^model\.config\.model_type=gpt22: .*mean gpt2?",
            ),
            ({"config": GPT2 | {"n_layers": 3}}, r"^model\.config\.n_layers: .*mean n_layer"),
            ({"config": GPT2 | {"n_head": 3}}, r"^model\.config: gpt2 cannot be built from it"),
            ({"config": GPT2 | {"vocab_size": 32}}, r"^model\.vocab_size=64: .*only 32 token val"),
            ({"config": GPT2, "seq_len": 33}, r"^model\.seq_len=33: .*e\.g\. data\.seq_len=32"),
            (
                {"pretrained": "./nowhere"},
                r"^model\.pretrained=\./nowhere: there is no such folder",
            ),
        ],
    )
    def test_model_of_transformers_that_cannot_be_built_is_rejected(self, options, sentence):
        with pytest.raises(ConfigError, match=sentence):
            HuggingFaceModel(**{"vocab_size": 64, **options})

    @pytest.mark.parametrize(("config", "size"), [(GPT2, "5GB"), (LLAMA, "10KB")])
    def test_transformers_loads_an_export(self, transformers, config, size, tmp_path, capfd):
        torch.manual_seed(0)
        model = HuggingFaceModel(vocab_size=64, config=config).eval()
        node = {"_target_": TARGET, "vocab_size": 64, "config": config}
        (tmp_path / "model-00001-of-00099.safetensors").write_text("of an earlier export")
        path, written = write_model(tmp_path, node, model.state_dict(), max_shard_size=size)
        assert not "".join(capfd.readouterr()), "no progress bars between the lines of the log"
        shards = len(list(tmp_path.glob("model*.safetensors")))
        is_whole = size == "5GB"
        assert (path, written) == (tmp_path / "model.safetensors" if is_whole else tmp_path, node)
        assert (shards == 1) is is_whole
        (mode := tmp_path / "mode").touch()
        assert {path.stat().st_mode for path in tmp_path.iterdir()} == {mode.stat().st_mode}, (
            "as the umask says"
        )
        load = transformers.AutoModelForCausalLM.from_pretrained
        assert torch.equal(load(tmp_path).eval()(TOKENS).logits, model.logits(TOKENS))
        (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create({"model": node})))
        assert torch.equal(load_model(tmp_path).logits(TOKENS), model.logits(TOKENS))
        half = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
        write_model(tmp_path, node, half)
        assert load(tmp_path, dtype="auto").dtype == torch.bfloat16

    def test_the_export_of_a_pretrained_model_has_its_tokenizer(self, transformers, tmp_path):
        source, export = tmp_path / "source", tmp_path / "export"
        write_tokenizer(source)
        export.mkdir()
        first = HuggingFaceModel(vocab_size=64, config=GPT2)
        first.model.save_pretrained(source)
        model = HuggingFaceModel(vocab_size=64, pretrained=str(source))
        node = {"_target_": TARGET, "pretrained": str(source), "vocab_size": 64}
        write_model(export, node, model.state_dict())
        theirs = transformers.AutoModelForCausalLM.from_pretrained(export)
        assert all(map(torch.equal, theirs.parameters(), first.model.parameters()))
        texts = [
            transformers.AutoTokenizer.from_pretrained(folder)("an option")["input_ids"]
            for folder in (source, export)
        ]
        assert texts[0] == texts[1]

    @pytest.mark.parametrize("task", BATCHES)
    def test_the_loss_of_a_dict_batch_is_that_of_transformers(self, task):
        torch.manual_seed(0)
        model = HuggingFaceModel(
            task=task, vocab_size=64, num_labels=3, config=CONFIGS[task]
        ).eval()
        batch = BATCHES[task]
        loss, records = model(batch)
        torch.testing.assert_close(loss, model.model(**batch).loss, rtol=0, atol=0)
        assert records["logits"].shape[:-1] == records["targets"].shape
        assert 0 <= records["accuracy"] <= 1
        assert HuggingFaceModel.num_targets(model, batch) == (records["targets"] != -100).sum()
        if task.endswith("classification"):
            input, labels = (next(iter(batch.values())), batch["labels"])
            assert torch.equal(model((input, labels))[0], loss)

    @pytest.mark.parametrize("task", ["causal_lm", "token_classification"])
    def test_a_dict_batch_without_targets_has_loss_and_gradients_of_zero(self, task):
        model = HuggingFaceModel(task=task, vocab_size=64, num_labels=3, config=CONFIGS[task])
        batch = BATCHES[task] | {"labels": torch.full((2, 8), -100)}
        loss, _ = model(batch)
        loss.backward()
        assert loss == 0 and model.num_targets(batch) == 0
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())

    @pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
    def test_labels_that_are_numbers(self, problem):
        config = CONFIGS["sequence_classification"] | {"problem_type": problem}
        labels = 1 if problem == "regression" else 3
        model = HuggingFaceModel(
            task="sequence_classification", vocab_size=64, num_labels=labels, config=config
        ).eval()
        targets = (
            torch.tensor([0.0, 1.0]) if labels == 1 else torch.tensor([[0.0, 1, 1], [1, 0, 0]])
        )
        batch = {"input_ids": TOKENS, "labels": targets}
        loss, records = model(batch)
        assert loss == model.model(**batch).loss and model.num_targets(batch) == targets.numel()
        assert model.num_targets({"labels": targets.to("meta")}).device.type == "meta"
        assert records["logits"].shape == records["targets"].shape
        assert ("accuracy" in records) == (labels == 3)

    def test_a_dict_batch_without_labels_is_rejected(self):
        model = HuggingFaceModel(vocab_size=64, config=GPT2)
        sentence = r"^data: a batch for model\.task=causal_lm needs `labels`.* input_ids\."
        for use in (model, model.num_targets):
            with pytest.raises(ConfigError, match=sentence):
                use({"input_ids": TOKENS})

    @pytest.mark.parametrize("model_type", ["llama", "qwen2"])
    def test_gpt2s_names_for_sizes_fit_other_architectures(self, model_type):
        sizes = {"n_layer": 3, "n_head": 2, "n_embd": 8, "bos_token_id": None}
        config = {"model_type": model_type, "num_key_value_heads": 1} | sizes
        made = HuggingFaceModel(vocab_size=64, config=config).model.config
        assert (made.num_hidden_layers, made.num_attention_heads, made.hidden_size) == (3, 2, 8)

    def test_settings_and_classes_of_a_pretrained_model_can_be_changed(self, tmp_path):
        task, config = "sequence_classification", CONFIGS["sequence_classification"]
        first = HuggingFaceModel(task, vocab_size=64, num_labels=3, config=config).model
        first.save_pretrained(tmp_path)
        options = {"pretrained": str(tmp_path), "config": {"hidden_dropout_prob": 0.25}}
        second = HuggingFaceModel(task, **options, num_labels=5).model
        assert second.config.hidden_dropout_prob == 0.25 and second.classifier.out_features == 5
        assert torch.equal(second.bert.pooler.dense.weight, first.bert.pooler.dense.weight)
        same = HuggingFaceModel(task, **options).model
        assert torch.equal(same.classifier.weight, first.classifier.weight)

    def test_a_model_that_is_nowhere_is_rejected_at_once(self, monkeypatch, tmp_path):
        """Nobody listens at this address: one connection fails, and nothing waits and tries
        again."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        waits = []
        monkeypatch.setattr("time.sleep", waits.append)
        sentence = (
            r"^model\.pretrained=no/such: is not a folder here .*127.0.0.1:9 cannot be reached"
        )
        with pytest.raises(ConfigError, match=sentence):
            HuggingFaceModel(pretrained="no/such")
        snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
        HuggingFaceModel(vocab_size=64, config=GPT2).model.save_pretrained(snapshot)
        (snapshot.parent.parent / "refs").mkdir()
        (snapshot.parent.parent / "refs" / "main").write_text("0123")
        HuggingFaceModel(pretrained="some/model")  # from the cache: it needs no hub
        assert waits == []
