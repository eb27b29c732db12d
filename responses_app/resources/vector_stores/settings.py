"""The settings of vector stores."""

from dataclasses import dataclass

from responses_app.protocol.setting import MIB, RoomSettings, flag, setting, whole


@dataclass(frozen=True, kw_only=True)
class VectorStoreSettings(RoomSettings):
    """Whether there are vector stores, and how much they may keep."""

    file_search: bool = setting(True, flag, "serve vector stores and the tool `file_search` (see File search)")
    vector_stores_max_entries: int = setting(
        1000, whole(), "vector stores that one project may have (see File search); 0 = no limit"
    )
    vector_store_max_files: int = setting(10_000, whole(), "files in one vector store; 0 = no limit")
    vector_store_max_chunks: int = setting(100_000, whole(), "chunks in one vector store; 0 = no limit")
    file_search_cache_bytes: int = setting(
        64 * MIB,
        whole(),
        "memory in which a process keeps what searches by meaning compare, of the vector stores that were searched "
        "last: 15 MB for 100,000 chunks with vectors of 1,024 numbers; 0 = it is read for each search",
    )
