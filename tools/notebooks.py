"""Run the notebooks under examples/ in an empty folder, and keep what they show: `make notebooks`.

    python tools/notebooks.py [NAME ...]

A notebook that fails is left as it was.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run all cells; the times of day at which they ran are not kept."""
    NotebookClient(notebook, timeout=3_600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def main() -> None:
    for name in sys.argv[1:] or sorted(path.stem for path in EXAMPLES.glob("*.ipynb")):
        path = EXAMPLES / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(nbformat.read(path, as_version=4), Path(folder)), path)
        print(path.name)


if __name__ == "__main__":
    main()
