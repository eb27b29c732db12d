"""Skills that tests send: a good one, and zip files of any kind."""

import base64
import io
import zipfile
from collections.abc import Mapping

from responses_app.protocol.errors import JsonObject

MANIFEST = "---\nname: basic-math\ndescription: Adds and multiplies numbers.\n---\n\nRun calculate.py.\n"
SCRIPT = "#!/bin/sh\necho $(($1 + $2))\n"
FILES = {"basic_math/SKILL.md": MANIFEST, "basic_math/add.sh": SCRIPT, "basic_math/references/tables.md": "1 + 1 = 2"}


def zipped(files: Mapping[str, str | bytes] = FILES, *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file with these files, whatever their names are."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo("x")
            entry.filename = path  # as it is: the constructor would mend it
            entry.compress_type = method
            archive.writestr(entry, content)
    return packed.getvalue()


def manifest(name: str = "basic-math", description: str = "Adds and multiplies numbers.") -> str:
    """Return a SKILL.md."""
    return f"---\nname: {name}\ndescription: {description}\n---\n"


def inline(content: bytes | None = None, name: str = "basic-math", description: str = "Adds numbers.") -> JsonObject:
    """Return a skill as a request brings it."""
    data = base64.b64encode(zipped() if content is None else content).decode()
    source: JsonObject = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": description, "source": source}
