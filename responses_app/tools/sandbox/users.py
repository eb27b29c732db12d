"""Users of containers: where the server is root, each container has one that no other process of the machine has.

The kernel counts processes by user, so two containers with one user would be in each other's way, also those of two
servers. A user is claimed by binding a local socket of its name: nobody else can, and when the server dies the kernel
gives it free.
"""

import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

# systemd leaves these ids to services that have a user of their own while they run, and no file belongs to one for
# good (https://systemd.io/UIDS-GIDS, "Dynamic Service Users"); the usual map of a container's ids has them, too.
_FIRST, _USERS = 61184, 4336


@dataclass(frozen=True, slots=True)
class UserClaim:
    """A user that is nobody else's until `close`; `uid` is None where the server is not root, and has only its own."""

    uid: int | None = None
    lock: socket.socket | None = None

    def close(self) -> None:
        """Leave the user to others."""
        if self.lock is not None:
            self.lock.close()


def _has_users() -> bool:
    """Whether these users are there: a user namespace may have but one, which only looks like root."""
    try:
        lines = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return any(first <= _FIRST and first + count >= _FIRST + _USERS for first, _, count in lines)


def claim_user() -> UserClaim:
    """Return a user for a container. Raises `OSError` where all are taken."""
    if os.geteuid() != 0 or not _has_users():
        return UserClaim()
    begin = random.randrange(_USERS)  # servers that do not see each other's sockets hardly meet
    for place in range(_USERS):
        uid = _FIRST + (begin + place) % _USERS
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0respsite-user-{uid}")
        except OSError:
            lock.close()
            continue
        return UserClaim(uid, lock)
    raise OSError("all users are taken")
