"""What a report on dead letters shows: numbers that add up, plots, and nothing that a letter could smuggle in."""

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from penstock.pipeline.jobs.dead_letter_report import MAX_BUCKETS, Count, Report, Sample, bucket_width
from penstock.pipeline.jobs.plots import bars, nice_ceiling, stacks

HOUR_MS = 3_600_000
BEGIN_MS = 1_760_000_400_000
EVIL = '<script>alert("x")</script>\x00\x1b[2J&'


def a_report() -> Report:
    counts = [
        Count(
            "orders.mail.dead", "max-attempts", "orders", "orders/mail", 120, BEGIN_MS, BEGIN_MS + 9 * HOUR_MS, 9_000
        ),
        Count("orders.mail.dead", "rejected", "orders", "orders/mail", 45, BEGIN_MS, BEGIN_MS + 5 * HOUR_MS, 2_000),
        Count("clicks.quarantine", EVIL, "clicks", "", 7, BEGIN_MS, BEGIN_MS + HOUR_MS, 70),
    ]
    times = [(BEGIN_MS + at * HOUR_MS, "max-attempts", 10 + at) for at in range(10)]
    times += [(BEGIN_MS + at * HOUR_MS, "rejected", 9) for at in range(5)]
    times += [(BEGIN_MS, EVIL, 7)]
    sample = Sample("clicks.quarantine", 0, 3, EVIL, "clicks", "", 0, BEGIN_MS, "k", f"{EVIL} value")
    return Report(BEGIN_MS, ["orders.mail.dead", "clicks.quarantine"], counts, 3, HOUR_MS, times, [sample])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)


def test_page_stands_alone_and_a_letter_cannot_put_a_script_into_it():
    page = a_report().html()
    tags = Tags()
    tags.feed(page)
    assert "svg" in tags.seen
    assert not tags.seen & {"script", "link", "img", "iframe", "object"}
    assert "&lt;script&gt;" in page and "\x00" not in page
    assert "175" in page  # all letters, those left out included


def test_plots_are_well_formed_and_as_large_as_what_they_show():
    drawn = ElementTree.fromstring(bars([("a", 10), (EVIL, 5), ("none", 0)]))
    widths = [float(bar.get("width", 0)) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    drawn = ElementTree.fromstring(stacks([("mon", [8, 2]), ("tue", [0, 5])], ["x", "y"]))
    heights = [float(bar.get("height", 0)) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert [height / heights[1] for height in heights] == pytest.approx([4.0, 1.0, 2.5], rel=0.01)
    ElementTree.fromstring(bars([]))
    ElementTree.fromstring(stacks([], []))


def test_axis_ends_at_a_round_number_that_is_not_below_the_highest_column():
    assert [nice_ceiling(most) for most in (1, 3, 8, 9, 11, 99, 450, 1_000_001)] == [
        1,
        4,
        8,
        10,
        20,
        100,
        500,
        2_000_000,
    ]


def test_numbers_of_a_report_add_up():
    told = a_report().as_dict()
    assert told["total"] == 175 == sum(told["by_reason"].values()) + told["left_out"]
    assert told["by_origin"] == {"orders/mail": 165, "clicks": 7}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(a_report().table())
    assert "\x1b[2J" not in captured.get() and "\x00" not in captured.get()
    assert "175 dead letters" in captured.get() and "orders/mail" in captured.get()


@pytest.mark.parametrize(
    "span_ms", [0, 900, 59_000, HOUR_MS, 30 * HOUR_MS, 24 * 400 * HOUR_MS, 24 * 365 * 1000 * HOUR_MS]
)
def test_time_is_cut_into_few_columns_of_a_round_width(span_ms: int):
    width = bucket_width(BEGIN_MS, BEGIN_MS + span_ms)
    assert (BEGIN_MS + span_ms) // width - BEGIN_MS // width <= MAX_BUCKETS
