"""The extension `playground`: a page that people try models with, and what it asks the API for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from responses_app.kit.duty import Duty
from responses_app.kit.extension import Extension
from responses_app.protocol.setting import RoomSettings, flag, setting

if TYPE_CHECKING:
    from django.urls import URLPattern

ADOPTING_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PlaygroundSettings(RoomSettings):
    """The settings of the extension."""

    playground_sharing: bool = setting(
        False, flag,
        "let everybody who may read a project's responses open any of its playground chats by link, not only those of "
        "their own key or user (see Chats)",
    )  # fmt: skip


class Playground(Extension):
    """The page at `/`, and `/v1/playground`."""

    name = "responses_app.extensions.playground"
    about = "a page to chat with models"
    settings = (PlaygroundSettings,)

    def endpoints(self) -> Sequence[Any]:
        """Return `/v1/playground`."""
        from responses_app.extensions.playground.endpoints import ENDPOINTS

        return ENDPOINTS

    def pages(self) -> Sequence["URLPattern"]:
        """Return the page."""
        from django.urls import path

        from responses_app.extensions.playground.page import playground

        return (path("", playground, name="playground"),)

    def duties(self, site: Any) -> Iterable[Duty]:
        """Return what finds the chats of responses that an older version has kept."""
        from responses_app.extensions.playground.chats import KeptChats

        yield Duty("finding the chats of older responses", site.made(KeptChats.of).adopt, ADOPTING_SECONDS)
