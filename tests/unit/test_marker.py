"""That the marker is found in every form: a search that finds nothing proves nothing otherwise."""

import base64
import json
import subprocess
import sys
import zlib
from array import array

import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.marker import Marker, gzipped, in_memory

MARKER = Marker()


@pytest.mark.parametrize("place", range(3))
def test_base64_at_any_place(place: int) -> None:
    text = base64.b64encode(b"x" * (7 + place) + MARKER.word.encode() + b" and more")
    assert f"base64 at {(7 + place) % 3}" in MARKER.forms_in(text)


@pytest.mark.parametrize("before", ["", "The word is ", "(", "a", '{"x":"'])
def test_its_tokens_whatever_stands_beside_it(before: str) -> None:
    tokens = array("I", encode_harmony(f"{before}{MARKER.word} and so on"))
    assert any(name.startswith("tokens") for name in MARKER.forms_in(tokens.tobytes()))


def test_what_is_compressed_is_opened() -> None:
    told = f"before {MARKER.word} behind"
    assert "compressed, plain" in MARKER.forms_in(b"\x78\x9c?" + zlib.compress(told.encode()) + b"rest")
    assert "compressed, plain" in MARKER.forms_in(b"..." + gzipped(told))


def test_escaped_and_wide_texts() -> None:
    assert "utf-16-le" in MARKER.forms_in(f"a {MARKER.word}".encode("utf-16"))
    assert "hex" in MARKER.forms_in(MARKER.word.encode().hex().encode())
    assert MARKER.forms_in(json.dumps("another text").encode()) == set()


def test_the_memory_of_a_process_is_read() -> None:
    """Of one that holds little else: this one may hold a gigabyte."""
    kept = Marker()
    code = "import sys; said = sys.stdin.readline(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{kept.word}\n")
        process.stdin.flush()
        process.stdout.readline()
        found = [kept.forms_in(data, opens=False) for _, data in in_memory(process.pid)]
        process.stdin.close()
    assert any("plain" in forms for forms in found)


def test_of_a_forked_process_what_it_has_written_is_read() -> None:
    before, since = Marker(), Marker()
    code = (
        "import os, sys; said = [sys.stdin.readline()]\nif os.fork():\n    os.wait(); sys.exit()\n"
        "said.append(sys.stdin.readline()); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{before.word}\n")
        process.stdin.write(f"{since.word}\n")
        process.stdin.flush()
        pages = [data for _, data in in_memory(int(process.stdout.readline()), forked=True)]
        process.stdin.close()
    assert any("plain" in since.forms_in(data, opens=False) for data in pages)
    assert sum(map(len, pages)) < 4_000_000  # of some 10 MB that it has
