"""Documents in folders written by `save_to_disk` of the package datasets."""

from pathlib import Path

from launcher.data.documents import DocumentData
from launcher.data.record_readers import read_saved
from launcher.errors import ConfigError
from launcher.process.files import expand


class DatasetsData(DocumentData):
    """A row per document, a field per column; `files` are folders of datasets or of splits."""

    reader = staticmethod(read_saved)

    def find(self, key: str, patterns: str | list[str]) -> list[Path]:
        folders = list(map(expand, [patterns] if isinstance(patterns, str) else patterns))
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"{key}={folder}: there is no such folder; save_to_disk(FOLDER) of a dataset"
                    " writes one."
                )
        return [folder.absolute() for folder in folders]
