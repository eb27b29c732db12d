"""The settings of notes."""

from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, setting, whole


@dataclass(frozen=True, kw_only=True)
class NotesSettings(RoomSettings):
    """How many notes there are."""

    notes_max: int = setting(100, whole(1), "notes that are kept of all projects; the oldest go")
