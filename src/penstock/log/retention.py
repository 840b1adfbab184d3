"""What may be forgotten. Arithmetic only: spans and settings in, a new start offset or a time out."""

from collections.abc import Sequence

from penstock.log.settings import TopicSettings
from penstock.storage.engine import Span

# Records that arrive with an old timestamp (a backfill, a test) are readable for at least so long, or for the topic's
# retention time if that is shorter.
GRACE_MS = 300_000

# Under cleanup.policy=settled the open span is closed when so much of it is settled, or all of it and at least so much:
# a busy queue keeps little more than what waits in it, an idle one little more than nothing.
SETTLED_ROLL_BYTES = 16 << 20
SETTLED_ROLL_ALL_BYTES = 256 << 10


def grace_ms(settings: TopicSettings) -> int:
    return min(GRACE_MS, max(0, settings.retention_ms))


def expiry_ms(span: Span, settings: TopicSettings) -> int | None:
    """When the newest record of this span will have outlived its time, if ever."""
    if not settings.deleted or settings.retention_ms < 0:
        return None
    return span.max_timestamp_ms + settings.retention_ms


def is_expired(span: Span, settings: TopicSettings, now_ms: int, aged_end: int) -> bool:
    """Whether every record of this span has outlived its time, and its grace: what lies before `aged_end` has."""
    due_ms = expiry_ms(span, settings)
    return due_ms is not None and due_ms <= now_ms and span.end_offset <= aged_end


def new_start(
    spans: Sequence[Span],
    settings: TopicSettings,
    start_offset: int,
    now_ms: int,
    aged_end: int,
    settled_end: int | None = None,
    stable_end: int | None = None,
) -> int:
    """Where the partition may begin now. Only closed spans go, oldest first, and none with an open transaction."""
    start = start_offset
    bounded = settings.deleted and settings.retention_bytes >= 0
    excess_bytes = sum(span.size_bytes for span in spans) - settings.retention_bytes
    for span in spans:
        oversize = bounded and excess_bytes >= span.size_bytes
        settled = settings.settled and settled_end is not None and span.end_offset <= settled_end
        if stable_end is not None and span.end_offset > stable_end:
            break
        if not span.closed or not (oversize or settled or is_expired(span, settings, now_ms, aged_end)):
            break
        excess_bytes -= span.size_bytes
        start = max(start, span.end_offset)
    return start


def is_open_span_settled(span: Span, settings: TopicSettings, settled_end: int | None) -> bool:
    """Whether so much of the open span is settled that closing it will free its space soon."""
    if not settings.settled or settled_end is None or settled_end <= span.base_offset:
        return False
    if settled_end >= span.end_offset:
        return span.size_bytes >= SETTLED_ROLL_ALL_BYTES
    share = (settled_end - span.base_offset) / (span.end_offset - span.base_offset)
    return share * span.size_bytes >= SETTLED_ROLL_BYTES


def frees_settled(spans: Sequence[Span], settings: TopicSettings, settled_end: int | None) -> bool:
    """Whether a look now would find something that only its being settled lets go."""
    if not settings.settled or settled_end is None or not spans:
        return False
    if spans[0].closed:
        return spans[0].end_offset <= settled_end
    return is_open_span_settled(spans[-1], settings, settled_end)
