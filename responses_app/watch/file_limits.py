"""What the playground says about files before it uploads them: how large they may be, how many, and where they go."""

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import containers
from responses_app.protocol.items import shown_files
from responses_app.protocol.requests.server_tools import MAX_STORES
from responses_app.runs.planning import reading
from responses_app.wiring.server_tools import interpreter_of
from responses_app.wiring.site import Site

PART_BYTES = 8 * 1024 * 1024  # what is larger goes in parts of this size; one that is lost is sent again


def file_limits(site: Site) -> JsonObject:
    """Return the limits of files by where they go; a place that this server does not have is null."""
    settings = site.settings
    has_containers = interpreter_of(site.tools) is not None
    return {
        "bytes": settings.file_max_bytes,  # of any file
        "part": PART_BYTES,
        "message": {"count": shown_files.MAX_FILES, "bytes": reading.MAX_BYTES, "characters": shown_files.MAX_TEXT},
        "images": {"count": settings.input_images_max, "bytes": settings.input_image_max_bytes},
        "code": {"count": containers.MAX_FILES, "bytes": settings.sandbox_disk_bytes} if has_containers else None,
        "store": {"count": settings.vector_store_max_files, "stores": MAX_STORES} if settings.file_search else None,
    }
