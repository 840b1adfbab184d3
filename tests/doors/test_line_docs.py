"""docs/line.md says what is true: its conversations are held, its shell commands are run, its tables are complete."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from line_house import line_server
from line_talk import Talk

from penstock.testing.server import Server
from penstock.wire.line.commands import TABLE
from servers import make_server

PAGE = (Path(__file__).parents[2] / "docs" / "line.md").read_text()
CONVERSATIONS = re.findall(r"^```line\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SCRIPTS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def exchanges(conversation: str) -> Iterator[tuple[list[str], list[str]]]:
    """What is typed, and what is answered to it."""
    typed: list[str] = []
    answered: list[str] = []
    for line in conversation.splitlines():
        if line.startswith("> "):
            if answered:
                yield typed, answered
                typed, answered = [], []
            typed.append(line[2:])
        else:
            answered.append(line)
    yield typed, answered


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda text: text.split("\n")[0].removeprefix("> "))
async def test_a_conversation_goes_as_it_is_told(conversation: str, tmp_path: Path) -> None:
    async with line_server(tmp_path) as (_, door):
        talk = await Talk.open(door.listener.port)
        for typed, answered in exchanges(conversation):
            talk.send("".join(f"{line}\r\n" for line in typed))
            bare = typed[0].startswith("FETCH ") and "count=" not in typed[0] and answered[0].startswith("MSG ")
            for number, expected in enumerate(answered):
                if bare and number == len(answered) - 1:
                    assert (await talk.exactly(len(expected.encode()))).decode() == expected
                else:
                    assert re.sub(r"timestamp=\d+", "timestamp=<time>", await talk.line()) == expected
        await talk.close()


@pytest.fixture
def documented_server() -> Iterator[Server]:
    with make_server() as server:
        yield server


def test_the_shell_commands_work(documented_server: Server) -> None:
    line_port, udp_port = (address.rsplit(":", 1)[1] for address in (documented_server.line, documented_server.udp))
    answers = []
    # The page comes to its scripts after a first conversation.
    subprocess.run(["bash", "-c", f"echo PUBLISH orders first | nc -N 127.0.0.1 {line_port}"], check=True, timeout=20)
    for script in SCRIPTS:
        for command in script.replace("7070", line_port).replace("7071", udp_port).splitlines():
            done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=20, check=True)
            answers.append(done.stdout)
    assert answers[:2] == [b"OK 1\r\n", b'MSG 1 16\r\n{"order_id":102}']
    ask = f"printf 'FETCH readings 0 count=10\\n' | nc -N 127.0.0.1 {line_port}"
    expected = [b"20.5", b"20.6", b"20.9", b"20.5", b"1013.2"]
    deadline = time.monotonic() + 20
    found: list[bytes] = []
    while found != expected and time.monotonic() < deadline:
        answer = subprocess.run(["bash", "-c", ask], capture_output=True, timeout=20, check=True).stdout
        found = answer.split(b"\r\n")[1:-2:2]
    assert found == expected


def test_every_command_and_option_is_on_the_page() -> None:
    for syntax in TABLE:
        assert f"`{syntax.name}" in PAGE, syntax.name
        for option in syntax.options:
            if option != "*":
                assert f"{option}<name>=" in PAGE if option.endswith(".") else f"{option}=" in PAGE, option
