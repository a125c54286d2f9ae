"""`python -m launcher.runs`: what runs there are, and how they stand. Only `digest` needs torch."""
