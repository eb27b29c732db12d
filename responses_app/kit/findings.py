"""`Finding`: what a check of `respsite doctor` found out."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it serves, and something is not as it should be
    PROBLEM = "problem"  # it does not serve, or not all of it


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found out."""

    level: Severity
    subject: str  # what was looked at
    text: str  # what was found
    advice: str = ""  # what to do; "" where nothing is


def ok(subject: str, text: str) -> Finding:
    """Return that something is well."""
    return Finding(Severity.OK, subject, text)


def warning(subject: str, text: str, advice: str) -> Finding:
    """Return that something should be looked at."""
    return Finding(Severity.WARNING, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> Finding:
    """Return that something is broken."""
    return Finding(Severity.PROBLEM, subject, text, advice)
