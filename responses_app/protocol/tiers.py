"""Service tiers: which a request may ask for, which one runs, how urgent it is, and how many of it may wait."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from responses_app.protocol.errors import invalid_value
from responses_app.protocol.setting import RoomSettings, choice, setting

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
PRIORITIES: dict[ServiceTier, int] = {  # vLLM's, of those that run: lower runs first
    "ultrafast": -20,
    "priority": -10,
    "scale": -5,
    "default": 0,
    "flex": 10,
}
# The priority of what takes the engine only where others leave room: lines of batches, and what may take hours.
BEHIND_ALL = 2**31 - 1
TIERS: tuple[str, ...] = get_args(ServiceTier)
SECONDS_A_STEP = 6.0  # of priority, in a queue: `priority` comes a minute earlier than it arrived, `flex` one later
MAX_STEPS = 20  # that count: so nothing that waits is overtaken for more than some minutes
_ALIASES = {"fast": "priority"}  # allowed where that is, and echoed as that


def tiers(value: str) -> tuple[str, ...]:
    """Service tiers."""
    tiers = tuple(dict.fromkeys(name.strip().lower() for name in value.split(",") if name.strip()))
    if not tiers or not set(tiers) <= set(TIERS):
        raise ValueError(f"some of {','.join(TIERS)}, separated by commas")
    return tiers


@dataclass(frozen=True, kw_only=True)
class ServiceTiers(RoomSettings):
    """The operator's choice: the tiers a request may ask for, and what none or `auto` means (`auto`: `default`)."""

    responses_default_service_tier: str = setting(
        "auto", choice(*TIERS), "service tier of requests that send none or `auto`; `auto` means `default`"
    )
    responses_allowed_service_tiers: tuple[str, ...] = setting(
        TIERS, tiers, "service tiers that a request may send; `fast` means `priority`", default_text=",".join(TIERS)
    )

    def problem(self, given: Container[str]) -> str | None:
        """Return an error where requests that ask for no tier could not ask for theirs."""
        default, allowed = (
            self.responses_default_service_tier,
            set(map(_resolved, self.responses_allowed_service_tiers)),
        )
        if _resolved(default) in allowed or (default == "auto" and "default" in allowed):
            return None
        return (
            f"RESPONSES_DEFAULT_SERVICE_TIER={default} is not among RESPONSES_ALLOWED_SERVICE_TIERS="
            f"{','.join(self.responses_allowed_service_tiers)}: choose one of these."
        )

    def tier(self, requested: str | None) -> ServiceTier:
        """Return the tier that runs. Raises `ApiError` for one that is not allowed here."""
        allowed = self.responses_allowed_service_tiers
        if requested is not None and _resolved(requested) not in map(_resolved, allowed):
            raise invalid_value(
                "service_tier",
                f"{requested!r} is not allowed here (RESPONSES_ALLOWED_SERVICE_TIERS). "
                f"Supported values are: {', '.join(allowed)}.",
            )
        tier = _resolved(self.responses_default_service_tier if requested in (None, "auto") else requested)
        # `auto` is left where the operator's default is that: it is none of those that run, and means `default`.
        return next((each for each in PRIORITIES if each == tier), "default")


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How many requests of a tier may wait in a queue."""

    others: int  # of each tier that `of_tiers` does not name
    of_tiers: Mapping[str, int] = field(default_factory=dict)  # by tiers that run

    def of(self, tier: str) -> int:
        """Return how many of a tier, which is one that runs."""
        return self.of_tiers.get(tier, self.others)


def queue_bounds(text: str) -> QueueBounds:
    """Read `1000`, or `1000,flex=5000`. Raises `ValueError`."""
    others, *named = (part.strip() for part in text.split(","))
    of_tiers = {_resolved(tier.strip().lower()): _number(bound) for tier, _, bound in (n.partition("=") for n in named)}
    if not of_tiers.keys() <= PRIORITIES.keys():
        raise ValueError(f"not a tier in {text!r}")
    return QueueBounds(_number(others), of_tiers)


def lateness(priority: int) -> float:
    """Return how much later than it came a request of this priority counts as come, in seconds; below 0: earlier.

    Infinite for `BEHIND_ALL`: it is never due.
    """
    if priority == BEHIND_ALL:
        return math.inf
    return SECONDS_A_STEP * max(-MAX_STEPS, min(MAX_STEPS, priority))


def _number(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise ValueError(f"not a number: {text!r}")
    return int(text)


def _resolved(tier: str) -> str:
    return _ALIASES.get(tier, tier)
