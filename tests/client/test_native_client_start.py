"""A reader that comes back in the very turn of the loop in which its subscription has begun."""

import asyncio

from penstock.client.connection import Connection
from penstock.client.subscription import Subscription


class Slow(Subscription):
    """Begins when it is told to."""

    gate: "asyncio.Future[None]"

    async def _begin(self) -> None:
        await self.gate

    def resume(self, connection: Connection) -> None:
        """Nothing ever comes."""


class NoSession:
    def discard(self, member: object) -> None:
        """It knows nobody."""


async def test_a_reader_that_comes_back_too_early_lets_the_loop_go_on() -> None:
    loop = asyncio.get_running_loop()
    subscription = Slow(NoSession(), "orders")  # type: ignore[arg-type]
    subscription.gate = loop.create_future()
    assert await subscription.take(timeout_s=0.01) == []
    starting, turn = subscription._starting, loop.create_future()
    assert starting is not None

    async def come_back() -> list[object]:
        await turn
        assert starting.done()
        assert not subscription._started, "nobody has noted yet that it has begun"
        return list(await subscription.take(timeout_s=0.01))

    reader = asyncio.ensure_future(come_back())
    await asyncio.sleep(0)
    subscription.gate.set_result(None)  # both wake in the next turn, the beginning first
    turn.set_result(None)
    assert await asyncio.wait_for(reader, 10) == []
    await subscription.close()
