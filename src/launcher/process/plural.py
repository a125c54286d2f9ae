"""Counts with their noun, and lists of names, as messages show them."""

from collections.abc import Collection


def plural(count: int, noun: str) -> str:
    """Format a count: "1 run", "2,000 runs", "2 batches"."""
    end = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else end}"


def shorten(names: Collection[str], most: int) -> str:
    """Join names with commas, of many the first ones: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join([*names][:most]) + more
