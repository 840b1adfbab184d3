"""Messages that failed: how often, when they are tried again, and which of them are going to the dead letters."""

from collections.abc import Iterator

from penstock.delivery.decision import Fact
from penstock.delivery.queue_events import WEEKS_MS, QueueSettings
from penstock.delivery.queue_facts import Trouble, read_trouble, trouble_fact, trouble_key

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def back_off_ms(settings: QueueSettings, place: int, attempts: int) -> int:
    """How long a message waits that failed for the nth time. The same message waits as long on every machine."""
    ceiling = settings.retry_ceiling_ms
    try:
        delay = min(float(ceiling), settings.retry_initial_ms * settings.retry_factor ** (attempts - 1))
    except OverflowError:
        delay = float(ceiling)
    mixed = (place * _MIX + attempts) * _MIX & _MASK
    mixed = (mixed ^ mixed >> 29) * _MIX & _MASK
    share = (mixed >> 11) / (1 << 52) - 1.0  # from -1 to 1
    return min(ceiling, WEEKS_MS, max(0, round(delay * (1.0 + settings.retry_jitter * share))))


class Troubles:
    def __init__(self, view_id: int) -> None:
        self.view_id = view_id
        self.by_place: dict[int, Trouble] = {}
        self._touched: dict[int, None] = {}

    def set(self, place: int, trouble: Trouble) -> None:
        self.by_place[place] = trouble
        self._touched[place] = None

    def forget(self, place: int) -> None:
        if self.by_place.pop(place, None) is not None:
            self._touched[place] = None

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        return bool(self._touched)

    def tell(self, facts: list[Fact], tombstones: list[Fact]) -> None:
        for place in self._touched:
            trouble = self.by_place.get(place)
            if trouble is None:
                tombstones.append(Fact(trouble_key(self.view_id, place), None))
            else:
                facts.append(trouble_fact(self.view_id, place, trouble))
        self._touched.clear()

    def retell(self, place: int) -> None:
        self._touched[place] = None

    def replay(self, place: int, value: bytes | None) -> None:
        if value is None:
            self.by_place.pop(place, None)
        else:
            self.by_place[place] = read_trouble(value)

    def tombstones(self) -> Iterator[Fact]:
        for place in {**self.by_place, **self._touched}:
            yield Fact(trouble_key(self.view_id, place), None)
