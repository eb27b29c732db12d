"""Service tiers: which a request may ask for, which one runs, and how urgent it is to the engine."""

from dataclasses import dataclass

from responses_app.protocol.errors import invalid_request

PRIORITIES = {"priority": -10, "scale": -5, "default": 0, "flex": 10}  # vLLM's: lower runs first


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTiers:
    """The operator's choice: the tiers a request may ask for, and what none or `auto` means (`auto`: `default`)."""

    default: str = "auto"
    allowed: tuple[str, ...] = ("auto", *PRIORITIES)

    def choose(self, asked: str | None) -> str:
        """Return the tier that runs. Raises `ApiError` for one that is not allowed here."""
        if asked is not None and asked not in self.allowed:
            raise invalid_request(
                f"Invalid value for 'service_tier': {asked!r} is not allowed here. "
                f"Supported values are: {', '.join(self.allowed)}.",
                param="service_tier",
                code="invalid_value",
            )
        tier = self.default if asked in (None, "auto") else asked
        return tier if tier in PRIORITIES else "default"
