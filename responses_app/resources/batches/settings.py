"""The settings of batches."""

from dataclasses import dataclass

from responses_app.protocol.setting import KIB, MIB, RoomSettings, setting, whole


@dataclass(frozen=True, kw_only=True)
class BatchSettings(RoomSettings):
    """How large batches may be, and how much of them runs at once."""

    batch_max_lines: int = setting(50_000, whole(1), "lines that a batch may have")
    batch_max_bytes: int = setting(
        200 * MIB, whole(KIB), "largest input file of a batch, also where FILE_MAX_BYTES is less"
    )
    batches_max_open: int = setting(
        100, whole(1), "batches of one project that may be under way at once; further ones get a 429"
    )
    batch_lines_running: int = setting(
        32, whole(1, 10_000), "lines of batches that one worker runs at once, shared fairly by projects"
    )
