"""Documents in Parquet files."""

from launcher.data.documents import DocumentData
from launcher.data.records import read_parquet


class ParquetData(DocumentData):
    """A document per row, a field per column; see `DocumentData`."""

    reader = staticmethod(read_parquet)
