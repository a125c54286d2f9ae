"""Executes docs/notebook.ipynb in an empty folder, and stores what its cells show.

`python docs/make_notebook.py [FILE]` stores the executed notebook in FILE, by default in its place.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"


def executed(folder: Path) -> Any:
    """The notebook with the outputs of its cells.

    Args:
        folder: the current folder of its kernel.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec}
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        nbformat.write(executed(Path(temporary)), sys.argv[1] if sys.argv[1:] else NOTEBOOK)
