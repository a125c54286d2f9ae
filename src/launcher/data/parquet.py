"""Documents in Parquet files."""

from launcher.data.documents import DocumentData
from launcher.data.records import read_parquet


class ParquetData(DocumentData):
    """One row a document, one column a field; see `DocumentData`."""

    reader = staticmethod(read_parquet)
