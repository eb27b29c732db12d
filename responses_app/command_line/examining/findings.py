"""What a check has found: that all is well, or what is the matter and what to do about it."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it serves, and something is not as it should be
    PROBLEM = "problem"  # it does not serve, or not all of it


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is what was looked at; `advice` is what to do, empty where nothing is."""

    level: Level
    subject: str
    text: str
    advice: str = ""


def ok(subject: str, text: str) -> Finding:
    """Return that something is well."""
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, advice: str) -> Finding:
    """Return that something should be looked at."""
    return Finding(Level.WARNING, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> Finding:
    """Return that something is broken."""
    return Finding(Level.PROBLEM, subject, text, advice)
