"""docs/kafka.md tells which APIs are served; this holds it to the truth."""

from pathlib import Path

from penstock.doors.kafka.api import HANDLERS
from penstock.doors.kafka.door import HANDLER_MODULES
from penstock.wire.kafka.api import ApiKey

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def test_the_page_lists_every_api_with_its_versions() -> None:
    assert HANDLER_MODULES
    told = [
        line for line in PAGE.read_text().splitlines() if line.count("|") == 4 and line.split("|")[2].strip().isdigit()
    ]
    served = []
    for key, handler in sorted(HANDLERS.items()):
        name = "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
        served.append(f"| {name} | {key} | {handler.min_version}-{handler.max_version} |")
    assert told == served
