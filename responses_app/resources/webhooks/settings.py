"""The settings of webhooks."""

from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, seconds, setting, whole
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(RoomSettings):
    """How much is kept of webhooks and for how long, where they are sent, and how long a receiver may take."""

    webhook_endpoints_max: int = setting(10, whole(), "webhook endpoints that one project may have; 0 = none")
    webhook_max_waiting: int = setting(
        20_000, whole(1),
        "events that may wait for one webhook endpoint, parked ones included; further ones are not sent to it, "
        "and counted in the admin",
    )  # fmt: skip
    webhook_retry_seconds: float = setting(
        259_200.0, seconds(1), "how long a webhook event is sent again to a receiver that fails; then it is parked"
    )
    webhook_kept_seconds: float = setting(
        86_400.0, seconds(0),
        "how long delivered webhook events are kept, so that the admin can show them; parked ones are kept for 30 "
        "days",
    )  # fmt: skip
    webhook_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks that webhook URLs may name, also with `http://`: `hooks.internal,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip
    webhook_seconds: float = setting(
        15.0, seconds(0.1), "how long the receiver of a webhook may take to answer; then the event is sent again"
    )
