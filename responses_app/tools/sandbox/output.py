"""`Output`: what a cell prints, as much of it as is worth reading."""

from collections import deque


class Output:
    """Keeps the beginning and the end of a stream of bytes, `most` bytes in all; `size` counts all that came."""

    def __init__(self, most: int) -> None:
        self.size = 0
        self._head = bytearray()
        self._most = most // 2
        self._tail: deque[bytes] = deque()
        self._in_tail = 0

    def add(self, content: bytes) -> None:
        """Take more."""
        self.size += len(content)
        room = self._most - len(self._head)
        if room > 0:
            self._head += content[:room]
            content = content[room:]
        if not content:
            return
        self._tail.append(content)
        self._in_tail += len(content)
        while self._in_tail - len(self._tail[0]) >= self._most:
            self._in_tail -= len(self._tail.popleft())

    def text(self) -> str:
        """Return it; what was left out of the middle is counted there."""
        tail = b"".join(self._tail)
        left_out = self.size - len(self._head) - min(len(tail), self._most)
        if left_out <= 0:
            return (bytes(self._head) + tail).decode(errors="replace")
        end = tail[-self._most :].decode(errors="replace")
        return f"{self._head.decode(errors='replace')}\n[… {left_out} bytes left out …]\n{end}"
