"""`Excess`: what a container holds more of than it may: memory, files, sockets."""

import asyncio
from pathlib import Path

from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox import disk, processes
from responses_app.tools.sandbox.base import SandboxSettings
from responses_app.tools.sandbox.records import CellEnd

MAX_SOCKETS = 256  # of a container: each may hold 0.2 MB in memory that is no process's
MAX_WAITING = 64 * MIB  # bytes that were sent by TCP inside of a container, and not read yet
MAX_FILES_IN_MEMORY = 50_000  # of a container, folders and all: each takes 1 KB that is no process's, even if empty


class Excess:
    """Looks at the processes below `root`, and at their files; `folder` is None where these lie in memory."""

    def __init__(self, root: int, settings: SandboxSettings, folder: Path | None, *, has_tcp: bool = False) -> None:
        self._root = root
        self._settings = settings
        self._folder = folder
        self._has_tcp = has_tcp  # a network of its own, with sockets of TCP

    def of_memory(self) -> CellEnd | None:
        """Return how a cell ends that takes too much memory; None where it takes less."""
        root, most = self._root, self._settings.sandbox_memory_bytes
        if self._has_tcp:
            # What waits in them is memory that is no process's; sockets that are closed may hold some of it, too.
            sockets, waiting = processes.tcp_sockets(root)
            if sockets > MAX_SOCKETS or waiting > MAX_WAITING:
                return CellEnd.TOO_MUCH_MEMORY
        # The quick count first, which may count too much; the right one only where that is exceeded.
        if processes.memory(root) > most and processes.proportional_memory(root) > most:
            return CellEnd.TOO_MUCH_MEMORY
        if self._folder is None and processes.sockets(root) > MAX_SOCKETS:
            return CellEnd.TOO_MUCH_MEMORY
        return None

    async def of_files(self) -> CellEnd | None:
        """Return how a cell ends that has too many files, or too large ones; None where it has less."""
        root, most = self._root, self._settings.sandbox_disk_bytes
        if self._folder is None:
            return CellEnd.TOO_MANY_FILES if disk.files_in_memory(root) > MAX_FILES_IN_MEMORY else None
        # Its network is the host's, so its sockets are found by its processes.
        if await asyncio.to_thread(processes.open_sockets, root, MAX_SOCKETS) > MAX_SOCKETS:
            return CellEnd.TOO_MUCH_MEMORY
        return CellEnd.TOO_MUCH_DISK if await asyncio.to_thread(disk.used, self._folder, root, most) > most else None
