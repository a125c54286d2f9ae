"""Configurations of small models of transformers."""

GPT2 = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
