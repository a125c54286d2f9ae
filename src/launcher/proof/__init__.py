"""Proofs that a run repeats: what a stop, a resume or another training changes."""
