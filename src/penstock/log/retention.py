"""What may be forgotten. Arithmetic only: spans and settings in, a new start offset or a time out."""

from collections.abc import Sequence

from penstock.log.settings import TopicSettings
from penstock.storage.engine import Span


def new_start(spans: Sequence[Span], settings: TopicSettings, start_offset: int, now_ms: int) -> int:
    """Where the partition may begin now. Only closed spans go, oldest first."""
    if not settings.deleted:
        return start_offset
    start = start_offset
    excess_bytes = sum(s.size_bytes for s in spans) - settings.retention_bytes if settings.retention_bytes >= 0 else 0
    for span in spans:
        if not span.closed:
            break
        expired = settings.retention_ms >= 0 and span.max_timestamp_ms + settings.retention_ms <= now_ms
        oversize = settings.retention_bytes >= 0 and excess_bytes >= span.size_bytes
        if not expired and not oversize:
            break
        excess_bytes -= span.size_bytes
        start = max(start, span.end_offset)
    return start


def next_expiry_ms(spans: Sequence[Span], settings: TopicSettings) -> int | None:
    """When the oldest span will have outlived its time, if ever."""
    if not settings.deleted or settings.retention_ms < 0 or not spans:
        return None
    return spans[0].max_timestamp_ms + settings.retention_ms
