"""Signatures of stored configurations, by a key that only the user can read.

What a run stores of its configuration decides which code a later command runs. A run folder may
come from somebody else or be changed by somebody, so the writer signs it (HMAC-SHA256).
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from launcher.process.files import expand, fsync_file

logger = logging.getLogger(__name__)

VARIABLE = "LAUNCHER_KEY"
KEY_BYTES = 32
SIGNATURE_PREFIX = "# signature: "
"""Beginning of the last line of a signed text in YAML."""
SIGNED_KEYS = {
    "run.json": ("overrides", "config_dir", "config"),
    "submission.json": ("config", "hydra", "cwd", "snapshot"),
}
"""Keys by file whose values are signed."""


def key_file() -> Path:
    """Return the file of the user's key, which the first run makes."""
    path = os.environ.get(VARIABLE)
    if path:
        return expand(path)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else expand("~/.config")) / "launcher" / "key"


def sign(purpose: str, content: object) -> str | None:
    """Sign what JSON makes of `content`; return None, with a note, if there can be no key."""
    file = key_file()
    try:
        key = _read(file) or _make(file)
    except OSError as error:
        _note(f"{file}: {error.strerror or error}")
        return None
    return _digest(key, purpose, content)


def is_own(purpose: str, content: object, signed: object) -> bool:
    """Return whether a signature of `content` was made with the user's key."""
    try:
        key = _read(key_file())
    except OSError:
        return False
    expected = None if key is None else _digest(key, purpose, content)
    return (
        expected is not None
        and isinstance(signed, str)
        and hmac.compare_digest(expected.encode(), signed.encode("utf-8", "replace"))
    )


def sign_text(text: str) -> str:
    """Return a text in YAML with its signature in a comment at the end."""
    own = sign("config.yaml", text)
    return text if own is None else f"{text}{SIGNATURE_PREFIX}{own}\n"


def is_own_text(text: str) -> bool:
    content, _, own = text.rpartition(SIGNATURE_PREFIX)
    return is_own("config.yaml", content, own.removesuffix("\n"))


def record_signature(name: str, record: Mapping[str, Any]) -> str | None:
    """Sign run.json or submission.json."""
    return sign(name, {key: record.get(key) for key in SIGNED_KEYS[name]})


def is_own_record(name: str, record: Mapping[str, Any]) -> bool:
    content = {key: record.get(key) for key in SIGNED_KEYS[name]}
    return is_own(name, content, record.get("signature"))


def _digest(key: bytes, purpose: str, content: object) -> str:
    # Keys become texts before they are sorted, as in a file.
    as_read = json.loads(json.dumps([purpose, content], default=str))
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _read(file: Path) -> bytes | None:
    """Read the key, or return None if there is none yet; raise an OSError if it is not secret."""
    try:
        with open(file, "rb") as opened:
            state, key = os.fstat(opened.fileno()), opened.read()
    except FileNotFoundError:
        return None
    # A key that the variable names may be a group's, whose members read it.
    mode = 0o640 if os.environ.get(VARIABLE) else 0o600
    if stat.S_IMODE(state.st_mode) & 0o077 & ~mode:
        raise PermissionError(0, f"can be read by others (chmod {mode:o} {file})")
    if len(key) < KEY_BYTES:
        raise OSError(0, f"has no key of {KEY_BYTES} bytes (remove it)")
    return key


def _make(file: Path) -> bytes:
    """Make the key. If another process does so at the same time, the first key counts."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
            opened.write(secrets.token_hex(KEY_BYTES).encode())
        fsync_file(temporary)
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return _read(file) or b""


@cache
def _note(problem: str) -> None:
    logger.warning(
        "The run is not signed, so commands that read its configuration may ask for --trust: %s;"
        " %s=FILE names another file for your key.",
        problem,
        VARIABLE,
    )
