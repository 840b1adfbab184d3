"""The page tells every option and column there is, and none that is not."""

import re
from pathlib import Path

from penstock.pipeline.options import COLUMNS, SOURCE_OPTIONS
from penstock.pipeline.schemas import TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "spark-source.md").read_text()


def first_cells(heading: str) -> list[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_tells_every_option() -> None:
    assert sorted(first_cells("Options")) == sorted(SOURCE_OPTIONS)


def test_the_page_tells_every_column() -> None:
    assert tuple(first_cells("Columns")) == COLUMNS == tuple(TYPES)
