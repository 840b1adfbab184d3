"""The examples of docs/client.md do what they say."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import penstock
from penstock.testing import Server

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def page_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, page_server: Server) -> None:
    source = EXAMPLES[number].replace("127.0.0.1:7070", page_server.line)
    code = compile(source, f"{PAGE.name}, example {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, object] = {"penstock": penstock, "print": lambda *_: None}
    ran = FunctionType(code, names)()
    if inspect.iscoroutine(ran):
        asyncio.run(asyncio.wait_for(ran, 60))
