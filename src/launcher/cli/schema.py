"""`python -m launcher schema`: JSON schemas of conf/, and their mapping for editors."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from launcher.config.options import find_installed, main_folder
from launcher.config.schema.editor import CONFIG, schemas
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument

FOLDER, CODE, JETBRAINS = ".schemas", Path(".vscode/settings.json"), Path(".idea/jsonSchemas.xml")
ENTRY = """\
        <entry key={name}>
          <value>
            <SchemaInfo>
              <option name="name" value={name} />
              <option name="relativePathToSchema" value={schema} />
              <option name="patterns">
                <list>
                  <Item>
                    <option name="pattern" value="true" />
                    <option name="path" value={pattern} />
                    <option name="mappingKind" value="Pattern" />
                  </Item>
                </list>
              </option>
            </SchemaInfo>
          </value>
        </entry>
"""
PROJECT = """\
<?xml version="1.0" encoding="UTF-8"?>
<project version="4">
  <component name="JsonSchemaMappingsProjectConfiguration">
    <state>
      <map>
{entries}      </map>
    </state>
  </component>
</project>
"""


def main(argv: Sequence[str]) -> None:
    """Write the schemas."""
    parser = Parser(
        "python -m launcher schema",
        description=(
            "Write JSON schemas of the options in conf/, and their mapping for VS Code and"
            " JetBrains. Write them again when a signature has changed."
        ),
    )
    parser.add_argument(
        "folder",
        type=path_argument,
        metavar="FOLDER",
        nargs="?",
        default=Path(),
        help="of the project (.)",
    )
    folder: Path = parser.parse_args(argv).folder
    count = write_schemas(folder)
    print(f"{folder / FOLDER}: {count} schemas, mapped in {CODE} and {JETBRAINS}")


def write_schemas(project: Path) -> int:
    """Write the schemas and mappings of a project; return their number."""
    conf = project / "conf"
    if not conf.is_dir():
        raise ConfigError(f"schema {project}: there is no {conf}; give the folder of a project.")
    if (str_path := str(project.absolute())) not in sys.path:
        # The project's classes are read from their source.
        sys.path.insert(0, str_path)
    folders = [
        conf,
        main_folder(),
        *(folder for folder in find_installed().values() if folder is not None),
    ]
    documents = schemas(folders)
    patterns = {
        name: "conf/config.yaml" if name == CONFIG else f"conf/{name}/*.yaml" for name in documents
    }
    settings = _settings(project / CODE)
    settings["yaml.schemas"] = settings.get("yaml.schemas", {}) | {
        f"{FOLDER}/{name}.json": pattern for name, pattern in patterns.items()
    }
    entries = "".join(
        ENTRY.format(
            name=quoteattr(f"conf/{name}"),
            schema=quoteattr(f"{FOLDER}/{name}.json"),
            pattern=quoteattr(pattern),
        )
        for name, pattern in patterns.items()
    )
    files = {
        Path(FOLDER) / f"{name}.json": json.dumps(document) for name, document in documents.items()
    }
    files |= {
        CODE: json.dumps(settings, indent=2) + "\n",
        JETBRAINS: PROJECT.format(entries=entries),
    }
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
