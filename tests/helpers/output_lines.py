"""The output of processes, line by line, and waits for lines."""

import re
import threading

# How long anything may take before a test gives up; no wait is ever that long.
DEADLINE_SECS = 120.0


class Lines:
    """Lines that other threads add while a test waits for one of them."""

    def __init__(self):
        self._lines: list[tuple[str, str]] = []
        self._ended = False
        self._changed = threading.Condition()  # Guards the others.

    def add(self, line: bytes, stream: str) -> None:
        """Adds a line, without its end, of "stdout" or "stderr"."""
        with self._changed:
            self._lines.append((stream, line.decode(errors="replace")))
            self._changed.notify_all()

    def end(self) -> None:
        """Says that no line follows, so that nobody waits for one."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def of(self, *streams: str) -> list[str]:
        """Returns the lines so far, of these streams or both, in order of arrival."""
        with self._changed:
            return [line for s, line in self._lines if not streams or s in streams]

    def wait_for(
        self, pattern: str, occurrence: int = 1, secs: float = DEADLINE_SECS
    ) -> re.Match[str]:
        """Waits until enough lines match a pattern; returns the last one's match."""
        found = []

        def enough() -> bool:
            found[:] = filter(None, (re.search(pattern, x) for x in self.of()))
            return len(found) >= occurrence or self._ended

        with self._changed:
            self._changed.wait_for(enough, secs)
        assert len(found) >= occurrence, (
            f"{len(found)} lines match {pattern!r} in\n" + "\n".join(self.of())
        )
        return found[occurrence - 1]
