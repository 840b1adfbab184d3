"""Who keeps a partition's stable end from going on, and where: until all partitions of a commit can show it at once.

Each holds it before one offset, so holders that follow one another without a gap hold up nobody for ever.
"""

from penstock.log.transactions import NEVER


class Holds:
    __slots__ = ("_offsets", "first")

    def __init__(self) -> None:
        self.first = NEVER
        self._offsets: dict[object, int] | None = None  # most partitions have none; one per ending that is under way

    def add(self, holder: object, offset: int) -> None:
        """One that holds already holds before both."""
        if self._offsets is None:
            self._offsets = {}
        self._offsets[holder] = min(offset, self._offsets.get(holder, NEVER))
        self.first = min(self.first, offset)

    def remove(self, holder: object) -> None:
        if self._offsets is not None and self._offsets.pop(holder, None) is not None:
            self.first = min(self._offsets.values(), default=NEVER)
            self._offsets = self._offsets or None
