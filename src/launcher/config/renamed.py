"""Names of keys that are not ours: old names, and names of other trainers.

Such a name is an error whose message has our name.
"""

RENAMED = {
    "run.not_identity": "run.identity_exclude",
    "trainer.no_sync_accumulate": "trainer.sync_every_micro_batch, with the opposite value",
    "trainer.max_none_losses": "trainer.max_consecutive_none_losses",
    "trainer.max_skipped_steps": "trainer.max_consecutive_skipped_steps",
    "hooks.checkpointing.exit_wait": "hooks.checkpointing.exit_delay",
    "hpo.eta": "hpo.reduction_factor",
    "hpo.startup_trials": "hpo.n_startup_trials",
}


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


def renamed(key: str) -> str | None:
    """Return the message for a key with a name that is not ours, or None."""
    if key in RENAMED:
        return f"is now {RENAMED[key]}."
    ours = ELSEWHERE.get(key.removeprefix("trainer."))
    return None if ours is None else f"no key {key}; use {ours}."
