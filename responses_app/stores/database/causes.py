"""Why a database cannot be used, in sentences that say what to do."""

import re

ONLY_READS = (
    "The database only lets read: it is a standby, or is being switched over. DATABASE_URL has to lead to the primary: "
    "a list of hosts with target_session_attrs=read-write finds it."
)
_CAUSES = {  # by SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html
    "25006": ONLY_READS,
    "53100": "The disk of the database is full.",
    "53300": "The database has no connection left. Raise max_connections there, or run fewer workers.",
}
# The driver knows no SQLSTATE of a connection that was refused.
_REFUSED = re.compile(
    r"(?P<x53300>too many (clients|connections)|remaining connection slots)|(?P<x25006>session is read-only)"
)


def cause_of(error: Exception) -> str | None:
    """Return the cause of a failure and its remedy, None where it is not one of those known here."""
    origin = error.__cause__ or error.__context__
    state = getattr(origin, "sqlstate", None) or getattr(origin and origin.__cause__, "sqlstate", None)
    if state is None and (refused := _REFUSED.search(str(error))) is not None:
        state = str(refused.lastgroup).removeprefix("x")
    return _CAUSES.get(str(state))
