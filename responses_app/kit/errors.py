"""What stores raise: `StoreError`, whose text is for logs, and `UnknownCursor`, which is a client's mistake.

`cause_of` says why a database cannot be used, in a sentence that says what to do.
"""

import re


class StoreError(Exception):
    """The store could not keep or find something, for a reason of its own; the text is for logs."""

    passing = False  # whether the same may work a little later: the database is away, busy or slow
    cause: str | None = None  # a sentence for operators, where the reason is one of those that are known


class UnknownCursor(Exception):
    """A cursor is no id: it names nothing in a list, now or ever."""


class StoreClosed(StoreError):
    """This process stops and has closed the store: nobody has to hear of it."""


class NotMigrated(StoreError):
    """The database lacks what this version keeps there. Who finds that tells the log once; clients may read it."""

    def __init__(self) -> None:
        super().__init__("The database lacks migrations: run `respsite manage migrate`.")


ONLY_READS = (
    "The database only lets read: it is a standby, or is being switched over. DATABASE_URL has to lead to the primary: "
    "a list of hosts with target_session_attrs=read-write finds it."
)
ALL_LENT = "all connections of this worker are in use"
_CAUSES = {  # by SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html
    "25006": ONLY_READS,
    "53100": "The disk of the database is full.",
    "53300": (
        "The database has no connection left. Raise max_connections there, lower DATABASE_CONNECTIONS, or run fewer "
        "workers."
    ),
    "lent": (
        "All connections of this worker are in use: the database is slow or does not answer, or there are too few. "
        "Then raise DATABASE_CONNECTIONS, or run more workers."
    ),
}
# The driver knows no SQLSTATE of a connection that was refused.
_REFUSED = re.compile(
    r"(?P<x53300>too many (clients|connections)|remaining connection slots|no more connections allowed)"
    rf"|(?P<x25006>session is read-only)|(?P<xlent>{ALL_LENT})"
)


def cause_of(error: Exception) -> str | None:
    """Return the cause of a failure and its remedy, None where it is not one of those known here."""
    return _CAUSES.get(_state_of(error) or _refusal(error))


def is_full(error: Exception) -> bool:
    """Whether the database had no connection left for this process, so nothing was asked yet."""
    return _state_of(error) is None and _refusal(error) == "53300"


def _state_of(error: Exception) -> str | None:
    origin = error.__cause__ or error.__context__
    state: str | None = getattr(origin, "sqlstate", None) or getattr(origin and origin.__cause__, "sqlstate", None)
    return state


def _refusal(error: Exception) -> str:
    refused = _REFUSED.search(str(error))
    return "" if refused is None else str(refused.lastgroup).removeprefix("x")
