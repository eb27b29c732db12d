"""Every reason that is told or logged says something: one function makes it."""

import builtins
import logging
import re
import socket
import ssl

import pytest

from engine.errors import MAX_REASON, reason_of
from responses_app.observing.logs import JsonLogLines, TextLines
from tests.kit.server import ROOT

KINDS = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]
SILENT = [kind() for kind in KINDS if not issubclass(kind, UnicodeError | ExceptionGroup) or kind is UnicodeError]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionResetError(), "the connection broke"),
        (FileNotFoundError(2, "whatever", "secret.txt"), "No such file or directory"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "certificate verify failed"),
        (ValueError("It is\n  wrong."), "It is wrong"),
        (KeyError("model"), "KeyError 'model'"),
        (ExceptionGroup("many", [ExceptionGroup("more", [TimeoutError()])]), "no answer in time"),
        (ValueError("x" * 10_000), "x" * (MAX_REASON - 1) + "…"),
    ],
)
def test_a_reason_says_why(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_one_that_says_nothing_is_as_what_it_came_of() -> None:
    error = RuntimeError()
    error.__cause__ = ConnectionRefusedError(111, "")
    assert reason_of(error) == "Connection refused"


@pytest.mark.parametrize("error", SILENT, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", [TextLines, JsonLogLines])
def test_no_exception_says_nothing_in_the_log(error: Exception, form: type[logging.Formatter]) -> None:
    record = logging.LogRecord("respsite", logging.INFO, "file.py", 1, "it broke (%s): %s.", (error, error), None)
    assert re.search(r"it broke \(\S.*\): \S.*\.", form().format(record)), form().format(record)


def test_no_other_place_makes_one() -> None:
    others = re.compile(r"\bstr\((error|problem|exc|cause)\) or |\.strerror\b|or type\((error|problem)\)\.__name__")
    inside = "responses_app/extensions/containers/sandbox/inside"  # programs of a sandbox, which have nothing of ours
    files = [path for package in ("engine", "responses_app", "respsite") for path in (ROOT / package).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in files if others.search(path.read_text())]
    allowed = {
        "engine/contents/derivations.py",  # what lark says, of which a part is told
        "engine/backends/vllm/config.py",  # what vLLM and pydantic say, of which a part is told
    }
    assert {each for each in found if not each.startswith(inside)} - allowed == {"engine/errors.py"} - allowed
