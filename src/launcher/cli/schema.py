"""`python -m launcher schema`: JSON schemas of conf/, and their mapping for VS Code."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.options import installed_folders, main_folder
from launcher.config.schema.editor import CONFIG, schemas
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument

FOLDER = Path(".schemas")
CODE = Path(".vscode/settings.json")


def main(argv: Sequence[str]) -> None:
    """Write the schemas."""
    parser = Parser(
        "python -m launcher schema",
        description=(
            "Write JSON schemas of the options in conf/, and their mapping for VS Code. Write them"
            " again when a signature has changed."
        ),
    )
    parser.argument(
        "folder", "FOLDER", "of the project (.)", type=path_argument, nargs="?", default=Path()
    )
    folder: Path = parser.parse_args(argv).folder
    count = write_schemas(folder)
    print(f"{folder / FOLDER}: {count} schemas, mapped in {CODE}")


def write_schemas(project: Path) -> int:
    """Write the schemas of a project and their mapping; return their number."""
    conf = project / "conf"
    if not conf.is_dir():
        raise ConfigError(f"schema {project}: there is no {conf}; give the folder of a project.")
    str_path = str(project.absolute())
    if str_path not in sys.path:
        # The project's classes are read from their source.
        sys.path.insert(0, str_path)
    documents = schemas([conf, main_folder(), *installed_folders()])
    settings = _settings(project / CODE)
    mapping = {str(FOLDER / f"{name}.json"): f"conf/{name}/*.yaml" for name in documents}
    mapping[str(FOLDER / f"{CONFIG}.json")] = "conf/config.yaml"
    settings["yaml.schemas"] = settings.get("yaml.schemas", {}) | mapping
    files = {FOLDER / f"{name}.json": json.dumps(schema) for name, schema in documents.items()}
    files[CODE] = json.dumps(settings, indent=2) + "\n"
    try:
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"schema {project}: cannot be written: {error.strerror}.") from error
    return len(documents)


def _settings(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise ConfigError(
            f"{file}: is not plain JSON ({error}); remove its comments, or move it away."
        ) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("yaml.schemas", {}), dict):
        raise ConfigError(f"{file}: should be a mapping of settings; move it away.")
    return settings
