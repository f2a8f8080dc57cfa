"""Clock of a step's parts."""

import time


class Clock:
    """Seconds of the parts of a step and bytes of its weight sync, as metrics of the group `timing/`. Not part of any result."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start the next step."""
        self.laps: dict[str, float] = {}
        self.sizes: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to that of a part, which may come again."""
        now, name = time.perf_counter(), f"timing/{part}_seconds"
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    def split(self, part: str, inner: str, seconds: float) -> None:
        """Move `seconds` from the time of a part to that of another one."""
        self.laps[f"timing/{part}_seconds"] -= seconds
        self.laps[f"timing/{inner}_seconds"] = seconds
