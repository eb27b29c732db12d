"""Stands for the programs that read documents and pictures, with a parser that takes all it can get, or breaks."""

import json
import os
import signal
from typing import Any

from responses_app.tools.reading import documents as reading
from responses_app.tools.reading import pictures
from responses_app.tools.reading.processes import serve


def greedy(name: str, body: bytes) -> str:
    if body == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if body == b"memory":
        return str(len(bytearray(8 * 1024**3)))
    return json.dumps(dict(os.environ))


def answer(header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Answer as the real one does, but for what reads."""
    if "low" in header:
        pictures.picture_of = lambda body, **_: {"content": greedy("", body).encode()}
        return pictures.answer(header, body)
    reading.text_of = greedy
    return reading.answer(header, body)


if __name__ == "__main__":
    serve(answer, cpu_seconds=5, memory=reading.MEMORY_BYTES)
