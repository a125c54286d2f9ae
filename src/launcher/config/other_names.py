"""Keys of other trainers. An error about such a key has the name of ours."""

ELSEWHERE = {
    **dict.fromkeys(
        (
            "accumulate_grad_batches",
            "accumulation_steps",
            "grad_accum",
            "grad_accum_steps",
            "grad_accumulation_steps",
            "gradient_accumulation",
            "gradient_accumulation_steps",
        ),
        "trainer.micro_batch_size, the samples of one pass; a step has data.batch_size samples",
    ),
    **dict.fromkeys(
        ("clip_grad", "clip_grad_norm", "grad_clip", "gradient_clip_val", "gradient_clipping"),
        "trainer.max_grad_norm",
    ),
    **dict.fromkeys(
        ("gradient_checkpointing", "grad_checkpointing"), "trainer.activation_checkpointing"
    ),
    **dict.fromkeys(("learning_rate", "base_lr"), "optimizer.lr"),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "n_epochs"), "trainer.max_epochs"),
    **dict.fromkeys(("devices", "num_gpus", "gpus", "nproc_per_node"), "dispatch.nproc"),
}
"""Keys of other trainers, at the top or in `trainer`, and ours."""


def ours(key: str) -> str | None:
    """Return the message for a key of another trainer, or None."""
    name = ELSEWHERE.get(key.removeprefix("trainer."))
    return None if name is None else f"no key {key}; use {name}."
