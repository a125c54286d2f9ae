"""Documents in folders that `save_to_disk` of the package datasets wrote."""

from pathlib import Path

from launcher.data.documents import DocumentData
from launcher.data.records import read_saved
from launcher.errors import ConfigError


class DatasetsData(DocumentData):
    """One row a document, one column a field; see `DocumentData`. `files` are folders: of a dataset, or of a split."""

    reader = staticmethod(read_saved)

    def find(self, key: str, patterns: str | list[str]) -> list[Path]:
        folders = [Path(each).expanduser() for each in ([patterns] if isinstance(patterns, str) else patterns)]
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"{key}={folder}: there is no such folder; save_to_disk(FOLDER) of a dataset writes one."
                )
        return [folder.absolute() for folder in folders]
