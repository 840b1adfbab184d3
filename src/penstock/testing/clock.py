"""Time that stands still until a test moves it."""


class ManualClock:
    """A Clock whose wall begins at a fixed date and whose monotonic side begins at zero."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Time passes, on both clocks."""
        assert ms >= 0, "time does not go back; set_wall does"
        self._wall_ms += ms
        self._monotonic_ms += ms

    def set_wall(self, wall_ms: int) -> None:
        """Somebody sets the system's clock; the monotonic side does not notice."""
        self._wall_ms = wall_ms
