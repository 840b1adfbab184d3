"""Time, injected. Nothing in the house reads the system's clock except through here."""

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970: timestamps and retention."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back: leases, sessions, deadlines."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
