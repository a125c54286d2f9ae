"""Keys that were renamed. An old name is an error whose message has the new name."""

RENAMED = {
    "run.not_identity": "run.identity_exclude",
    "trainer.no_sync_accumulate": "trainer.sync_every_micro_batch, with the opposite value",
    "trainer.max_none_losses": "trainer.max_consecutive_none_losses",
    "trainer.max_skipped_steps": "trainer.max_consecutive_skipped_steps",
    "hooks.checkpointing.exit_wait": "hooks.checkpointing.exit_delay",
    "hpo.eta": "hpo.reduction_factor",
    "hpo.startup_trials": "hpo.n_startup_trials",
}


def renamed(key: str) -> str | None:
    """Return the message for a key with an old name, or None."""
    return f"is now {RENAMED[key]}." if key in RENAMED else None
