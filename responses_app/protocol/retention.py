"""How long a project keeps what it stores, as its operator has set it: never, some hours, for ever, or as the server's
settings say. It is a number of hours where it is kept; `NEVER` and `FOR_EVER` are two of them, None is the server's.
"""

from responses_app.protocol.errors import ApiError, invalid_request

NEVER = 0
FOR_EVER = -1
MAX_HOURS = 87_600  # ten years
HOUR = 3600.0  # seconds

AS_SERVER = "server"  # how people write None
_WORDS = {AS_SERVER: None, "never": NEVER, "forever": FOR_EVER}


def parse_retention(text: str) -> int | None:
    """Return the hours that a word or a number of hours means. Raises `ValueError`, with a sentence."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_HOURS)) and 1 <= int(text) <= MAX_HOURS:
        return int(text)
    words = ", ".join(f"'{word}'" for word in _WORDS)
    raise ValueError(f"{text[:80]!r} is not one of {words}, or a whole number of hours from 1 to {MAX_HOURS:,}")


def written(hours: int | None) -> str:
    """Return the text that `parse_retention` reads as these hours."""
    return next((word for word, value in _WORDS.items() if value == hours), str(hours))


def kept(hours: int) -> str:
    """Return how people read these hours."""
    return written(hours) if hours <= NEVER else f"{hours:,} hours"


def oldest(hours: int | None, now: float, *, ttl: float = 0.0) -> float:
    """Return the time at or before which a thing was made that is past its time; below 0 for none.

    `ttl` is what the server's settings say of such things, in seconds; 0 is for ever. The shorter one counts.
    """
    if hours == FOR_EVER or (hours is None and not ttl):
        return -1.0  # before 1970, so that everything is younger
    own = now - ttl if ttl else -1.0
    return own if hours is None else max(own, now - hours * HOUR)


def keeps_nothing(what: str, instead: str, *, param: str | None = None) -> ApiError:
    """Something cannot be had in a project that keeps nothing (400). `what` is a sentence, and so is `instead`."""
    return invalid_request(
        f"{what}, and this project keeps nothing (its retention is 'never'). {instead}",
        param=param,
        code="retention_never",
    )
