"""Counts with their noun, as messages show them."""


def plural(count: int, noun: str) -> str:
    """Format a count: "1 run", "2,000 runs", "2 batches"."""
    end = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else end}"
