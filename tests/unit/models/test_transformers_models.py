import pytest

from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def test_a_model_that_is_nowhere_is_refused_at_once(monkeypatch, tmp_path):
    """Nobody listens at this address: one connection is refused, and nothing waits and tries
    again."""
    pytest.importorskip("transformers")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(
        ConfigError,
        match=r"^model\.pretrained=no/such: is not a folder here .*127.0.0.1:9 cannot be reached",
    ):
        HuggingFaceModel(pretrained="no/such")
    assert waits == []
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
    HuggingFaceModel(vocab_size=64, config=GPT2).model.save_pretrained(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0123")
    HuggingFaceModel(pretrained="some/model")  # from the cache: it needs no hub
    assert waits == []
