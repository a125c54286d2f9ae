"""Completion for bash and zsh: `eval "$(launcher -sc install=bash)"`.

Hydra's own takes a second per key press.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from launcher.cli.help import folders_of
from launcher.config.options import groups, main_folder
from launcher.config.schema.reference import Key, group_options, top_keys
from launcher.process.files import expand

SHELLS = ("bash", "zsh")
FLAGS = (
    "--help",
    "--version",
    "--cfg",
    "--resolve",
    "--package",
    "--multirun",
    "--run",
    "--config-dir",
    "--config-name",
    "--info",
    "--shell-completion",
    "--verbose",
)
FLAG_VALUES = {"--cfg": ("job", "hydra", "all"), "-c": ("job", "hydra", "all")}
FOLDER_FLAGS = ("--config-dir", "-cd")

# The script asks the very command that is being typed. It passes COMP_LINE: bash and zsh count
# COMP_WORDS differently.
SCRIPT = """\
_launcher_complete() {
    local program=${COMP_LINE%% *}
    COMPREPLY=()
    case $COMP_LINE in
        *" -m launcher "*) program="$program -m launcher" ;;
        *python*) return ;;
    esac
    local IFS=$'\\n'
    COMPREPLY=($(IFS=' '; COMP_LINE=$COMP_LINE COMP_POINT=$COMP_POINT \\
        eval "$program -sc query=SHELL" 2>/dev/null))
}
complete -o nospace -o default -F _launcher_complete launcher python python3
"""
ZSH = "autoload -U +X compinit && compinit; autoload -U +X bashcompinit && bashcompinit\n"


def request_of(arguments: Sequence[str]) -> str | None:
    """Return the request of a command line (`install=bash`, `query=bash`, ...), or None."""
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=True):
        request = (
            value
            if flag in ("-sc", "--shell-completion")
            else flag.partition("--shell-completion=")[2]
        )
        if re.fullmatch(rf"(install|query)=({'|'.join(SHELLS)})", request):
            return request
    return None


def answer(request: str) -> str:
    """Return the script to evaluate, or the candidates, one per line."""
    kind, _, shell = request.partition("=")
    if kind == "install":
        return (ZSH if shell == "zsh" else "") + SCRIPT.replace("SHELL", shell)
    line = os.environ.get("COMP_LINE", "")
    line = line[: int(os.environ.get("COMP_POINT") or len(line))]
    current = line.rpartition(" ")[2]
    texts = candidates(line.removesuffix(current).split(), current)
    if shell == "bash" and (cut := max(current.rfind("="), current.rfind(":")) + 1):
        # Bash breaks words there, and replaces only the last part.
        texts = [text[cut:] for text in texts]
    return "".join(f"{text}\n" for text in texts)


def candidates(arguments: Sequence[str], current: str) -> list[str]:
    """Complete the word that is being typed, "" after a trailing blank."""
    previous = arguments[-1] if arguments else ""
    folders = folders_of(arguments)
    if previous in FLAG_VALUES:
        return _matching(current, (f"{value} " for value in FLAG_VALUES[previous]))
    if previous in FOLDER_FLAGS:
        return _matching(current, (f"{path}/" for path in _subfolders(current)))
    if current.startswith("-"):
        return _matching(current, (f"{flag} " for flag in FLAGS))
    sign = current[: len(current) - len(current.lstrip("+~"))]
    word = current.removeprefix(sign)
    listed = groups(folders)
    if "=" in word:
        return [sign + text for text in _values(word, folders, listed)]
    ends = " " if {"-h", "--help"} & set(arguments) else "="
    if "." not in word:
        names = [f"{group}{' ' if sign == '~' else ends}" for group in listed]
        names += dict.fromkeys(_first(key.name, ends) for key in top_keys(folders[0]))
        names += [f"{group}." for group in listed if group not in ("experiment", "dispatch")]
        commands = ["init "] if not word or len(arguments) < 4 else []
        return [sign + text for text in _matching(word, [*dict.fromkeys(names), *commands])]
    keys = _keys(word.partition(".")[0], arguments, folders, listed)
    chosen = [key.name for key in keys if key.is_set or sign == "+"]
    return [sign + text for text in _matching(word, (f"{name}{ends}" for name in chosen))]


def _first(key: str, ends: str) -> str:
    return f"{key.partition('.')[0]}." if "." in key else f"{key}{ends}"


def _values(word: str, folders: Sequence[Traversable], listed: dict[str, list[str]]) -> list[str]:
    """The options of a group (`hooks=[default,` takes several), or the values of a key with few."""
    key, _, value = word.partition("=")
    if key in listed:
        several = (
            value.rpartition(",")[0] + "," if "," in value else "[" if value.startswith("[") else ""
        )
        ends = "" if several else " "
        return _matching(word, (f"{key}={several}{option}{ends}" for option in listed[key]))
    kinds = [
        parameter.kind
        for parameter in _keys(key.partition(".")[0], (), folders, listed)
        if parameter.name == key
    ]
    return _matching(
        word, (f"{key}={choice} " for kind in dict.fromkeys(kinds) for choice in _choices(kind))
    )


def _choices(kind: str) -> list[str]:
    """The values in a type's description, such as "one of a, b or null"."""
    texts: list[str] = []
    for part in kind.split(" or "):
        part = part.removeprefix("one of ")
        texts += part.split(", ") if re.fullmatch(r"[\w.+-]+(, [\w.+-]+)*", part) else []
    return (
        ["true", "false"]
        if kind == "true or false"
        else [text for text in texts if not text.isdecimal()]
    )


def _keys(
    part: str,
    arguments: Sequence[str],
    folders: Sequence[Traversable],
    listed: dict[str, list[str]],
) -> Iterable[Key]:
    """Return the keys of a group's chosen option, or of a section."""
    if part not in listed:
        return top_keys(folders[0])
    chosen = [word.partition("=")[2] for word in arguments if word.startswith(f"{part}=")] or list(
        _defaults(part)
    )
    options = group_options(folders, part)
    keys = [key for option in options for key in option.keys if option.name in chosen]
    return keys or [key for option in options for key in option.keys]


def _defaults(group: str) -> Iterator[str]:
    for entry in yaml.safe_load((main_folder() / "config.yaml").read_text(encoding="utf-8"))[
        "defaults"
    ]:
        if isinstance(entry, dict) and isinstance(entry.get(group), str):
            yield entry[group]


def _subfolders(text: str) -> Iterator[Path]:
    start = expand(text or ".")
    parent = start if text.endswith("/") or not text else start.parent
    if parent.is_dir():
        yield from (
            path
            for path in sorted(parent.iterdir())
            if path.is_dir() and not path.name.startswith(".")
        )


def _matching(word: str, texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text.startswith(word)))
