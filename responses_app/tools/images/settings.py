"""The settings of images."""

from dataclasses import dataclass

from responses_app.protocol.setting import KIB, MIB, RoomSettings, seconds, setting, text, whole
from responses_app.tools.network import AddressRefused, AllowedHosts


def image_url(value: str) -> str:
    """The URL of an image service."""
    url = value.strip().rstrip("/")
    try:
        AllowedHosts.of_url(url)
    except (ValueError, AddressRefused):
        url = ""
    if not url.startswith(("http://", "https://")):
        raise ValueError("the URL of a service with OpenAI's Images API, like http://127.0.0.1:8188/v1")
    return url.removesuffix("/generations").removesuffix("/images")


@dataclass(frozen=True, kw_only=True)
class ImageSettings(RoomSettings):
    """The settings of the service that makes images."""

    image_service_url: str = setting(
        "", image_url,
        "a service with OpenAI's Images API, which makes the images of `image_generation`: "
        "`http://127.0.0.1:8188/v1` (see Images)",
        default_text="unset: no image generation",
    )  # fmt: skip
    image_service_key: str = setting(
        "", text, "the API key that the service at IMAGE_SERVICE_URL asks for", default_text="unset", secret=True
    )
    image_service_model: str = setting(
        "", text,
        "the model that the service at IMAGE_SERVICE_URL is asked for, whatever requests say",
        default_text="unset: what a request says",
    )  # fmt: skip
    image_service_seconds: float = setting(
        180.0, seconds(1), "how long the service at IMAGE_SERVICE_URL may take for one image"
    )
    image_max_bytes: int = setting(8 * MIB, whole(64 * KIB), "largest image that is made, or taken to be edited")
