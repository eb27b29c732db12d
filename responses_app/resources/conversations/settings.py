"""The settings of conversations."""

from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, setting, whole


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(RoomSettings):
    """How many conversations are kept."""

    conversations_max_entries: int = setting(0, whole(), "conversations that one project may have; 0 = no limit")
