"""Service tiers: which a request may ask for, which one runs, and how urgent it is to the engine."""

from dataclasses import dataclass
from typing import Literal, get_args

from responses_app.protocol.errors import invalid_request

PRIORITIES = {"ultrafast": -20, "priority": -10, "scale": -5, "default": 0, "flex": 10}  # vLLM's: lower runs first
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
TIERS: tuple[str, ...] = get_args(ServiceTier)
_ALIASES = {"fast": "priority"}  # allowed where that is, and echoed as that


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTiers:
    """The operator's choice: the tiers a request may ask for, and what none or `auto` means (`auto`: `default`)."""

    default: str = "auto"
    allowed: tuple[str, ...] = TIERS

    def choose(self, asked: str | None) -> str:
        """Return the tier that runs. Raises `ApiError` for one that is not allowed here."""
        if asked is not None and _resolved(asked) not in map(_resolved, self.allowed):
            raise invalid_request(
                f"Invalid value for 'service_tier': {asked!r} is not allowed here (RESPONSES_ALLOWED_SERVICE_TIERS). "
                f"Supported values are: {', '.join(self.allowed)}.",
                param="service_tier",
                code="invalid_value",
            )
        tier = _resolved(self.default if asked in (None, "auto") else asked)
        return tier if tier in PRIORITIES else "default"


def _resolved(tier: str) -> str:
    return _ALIASES.get(tier, tier)
