"""Order by key: of each key one message is out at a time, and the others wait behind it.

The one that was handed out first holds its key until it is settled, also while it waits to be tried again.
"""

from collections.abc import Callable, Iterator

from penstock.delivery.queue_backlog import KEY_SHIFT, PLACE_MASK, WITHOUT_KEY, Fifo


class KeyOrder:
    def __init__(self) -> None:
        self.holders: dict[int, int] = {}  # by key: the place that holds it
        self._keys: dict[int, int] = {}  # and back
        self._parked: dict[int, Fifo] = {}  # messages without their key, by key
        self.parked_count = 0

    def __bool__(self) -> bool:
        return bool(self.holders)

    def claim(self, message: int) -> bool:
        """True: it holds its key (or has none) and may go. False: it is parked behind the one that does."""
        key = message >> KEY_SHIFT
        if not key:
            return True
        place = message & PLACE_MASK
        holder = self.holders.setdefault(key, place)
        if holder == place:
            self._keys[place] = key
            return True
        fifo = self._parked.get(key)
        if fifo is None:
            fifo = self._parked[key] = Fifo()
        fifo.extend((message & WITHOUT_KEY,))
        self.parked_count += 1
        return False

    def hold(self, message: int) -> None:
        """It is out already: it holds its key, unless another one does."""
        key, place = message >> KEY_SHIFT, message & PLACE_MASK
        if key and key not in self.holders and place not in self._keys:
            self.holders[key] = place
            self._keys[place] = key

    def free(self, place: int) -> int | None:
        """It is settled: the next message of its key, which holds the key from now on."""
        key = self._keys.pop(place, None)
        if key is None:
            return None
        del self.holders[key]
        fifo = self._parked.get(key)
        if fifo is None:
            return None
        message = fifo.take(1)[0] | key << KEY_SHIFT
        self.parked_count -= 1
        if not len(fifo):
            del self._parked[key]
        self.holders[key] = message & PLACE_MASK
        self._keys[message & PLACE_MASK] = key
        return message

    def discard(self, doomed: Callable[[int], bool]) -> None:
        """Forget these among the parked."""
        for key, fifo in list(self._parked.items()):
            kept = Fifo()
            kept.extend([message for message in fifo if not doomed(message & PLACE_MASK)])
            self.parked_count += len(kept) - len(fifo)
            if len(kept):
                self._parked[key] = kept
            else:
                del self._parked[key]

    def held_places(self) -> list[int]:
        return list(self._keys)

    def parked_places(self) -> Iterator[int]:
        for fifo in self._parked.values():
            yield from (message & PLACE_MASK for message in fifo)

    def check(self) -> None:
        assert {place: key for key, place in self.holders.items()} == self._keys
        assert self._parked.keys() <= self.holders.keys(), "who is parked waits for somebody"
        assert self.parked_count == sum(map(len, self._parked.values()))
