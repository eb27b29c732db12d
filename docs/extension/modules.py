"""Every module, with the first sentence of its docstring."""

import ast
import re
from pathlib import Path

from docs.extension.tables import code, plain, table

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("engine", "responses_app", "respsite")


def markdown() -> str:
    """Return a table for each folder that has modules."""
    folders = sorted({path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")})
    parts = []
    for folder in folders:
        paths = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if paths and folder.name != "migrations":
            rows = ((code(path.stem), _sentence(path)) for path in paths)
            parts += [f"## {folder.relative_to(ROOT).as_posix()}/", table(("module", "what it is"), rows)]
    return "\n\n".join(parts)


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    about = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0].split())
    return plain(re.split(r"(?<=\.)\s", about, maxsplit=1)[0])
