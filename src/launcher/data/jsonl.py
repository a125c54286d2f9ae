"""Documents in files of JSON lines."""

from launcher.data.documents import DocumentData
from launcher.data.records import read_jsonl


class JsonlData(DocumentData):
    """One JSON object a line; see `DocumentData`."""

    reader = staticmethod(read_jsonl)
