"""Documents in files of JSON lines."""

from launcher.data.documents import DocumentData
from launcher.data.records import read_jsonl


class JsonlData(DocumentData):
    """A JSON object per line; see `DocumentData`."""

    reader = staticmethod(read_jsonl)
