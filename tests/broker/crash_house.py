"""A queue house on files that fail when they are told to."""

import asyncio
import contextlib
from pathlib import Path

from queue_house import QueueHouse

from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Engine
from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles, PowerLossFiles


class DyingFiles(PowerLossFiles):
    """Tells when it died."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._loop = asyncio.get_running_loop()
        self.died = asyncio.Event()

    def _before(self, method: str) -> bool:
        dies = super()._before(method)
        if dies:
            self._loop.call_soon_threadsafe(self.died.set)
        return dies


class CrashHouse(QueueHouse):
    def __init__(self, data: Path, files: FaultyFiles) -> None:
        super().__init__("disk", data, ManualClock())
        self.files = files
        self.engines: list[DiskEngine] = []

    def _engine(self) -> Engine:
        self.engines.append(DiskEngine(self.data, self.clock, files=self.files))
        return self.engines[-1]

    async def bury(self) -> None:
        """Release what a dead process would not hold any more."""
        with contextlib.suppress(AttributeError):
            await self.stop()
        for engine in self.engines:
            engine._executor.shutdown()
            engine._committer.shutdown()
            engine._descriptors.close()
            engine._directory.unlock()
