"""Patterns of secrets: their keys, and their values.

The same table decides what a configuration may contain, and what `code.diff` leaves out.
"""

import re
from functools import cache

OWNER = (
    r"access|account|admin|anthropic|api|auth|aws|azure|bearer|cohere|comet|deploy|encryption|gcp"
    r"|gemini|github|gitlab|google|hf|hub|hugging_?face|master|mistral|neptune|openai|personal"
    r"|private|refresh|replicate|sas|secret|security|service|session|signing|slack|storage"
    r"|subscription|vault|wandb"
)
KEY = (
    rf"(?:(?:{OWNER})[_-]?(?:key|token|pat)|secret|passw(?:or)?d|passphrase|pwd|credentials?"
    r"|authorization|conn(?:ection)?[_-]?str(?:ing)?)(?:[_-]?\d+)?"
)
"""The end of a name whose text is a secret, whatever it is."""
SECRET_KEY = re.compile(
    rf"(?:.*[_-])?(?:{KEY}|service[_-]?url|webhook(?:[_-]?url)?)", re.IGNORECASE
)
POSSIBLE_KEY = re.compile(r"token|pat|sas|auth|bearer", re.IGNORECASE)
"""Names whose text is a secret only if it looks like one. A token may be a word of a vocabulary."""
POSSIBLE_VALUE = re.compile(r"[\w.~+/=&%:@!#-]{16,}")
VALUE = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}|\bhf_[A-Za-z0-9]{30,}|\bAIza[\w-]{35}|\bsk-(?:[\w-]*-)?\w{20,}"
    r"|\bxox[abprs]-[\w-]{10,}|://[^/\s:@]*:[^/\s:@$]+@|\bBearer\s+[\w.~+/-]{20,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.|hooks\.slack\.com/services/\w"
    r"|(?i:\b(?:account|shared_?access)_?key|\b(?:password|pwd|sig))=[^\s;&\"'$]{8,}"
)
SECRET_VALUE = re.compile(VALUE)
SECRET_TEXT = re.compile(
    rf"{VALUE}|\bkey[\"']?\s*[:=]\s*[\"'][0-9a-f]{{32,}}[\"']"
    rf"|(?i:{KEY}|token)[\"']?\s*[:=]\s*(?:([\"'])[^\"'$\s]{{8,}}\1|[\w+/-]{{16,}}\s*$)",
    re.MULTILINE,
)
"""A secret in source code: a value, or an assignment to a key."""
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def is_secret(name: str) -> bool:
    """Return whether a key looks like the key of a secret."""
    return _is_certain(name) or POSSIBLE_KEY.fullmatch(name) is not None


def holds_secret(name: str, text: str) -> bool:
    """Return whether the text of a key is a secret."""
    return (
        SECRET_VALUE.search(text) is not None
        or _is_certain(name)
        or (POSSIBLE_KEY.fullmatch(name) is not None and POSSIBLE_VALUE.fullmatch(text) is not None)
    )


@cache
def _is_certain(name: str) -> bool:
    return SECRET_KEY.fullmatch(HUMP.sub("_", name)) is not None
