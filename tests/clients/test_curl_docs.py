"""The examples of docs/http.md, run as they stand there, one after another."""

import re
import subprocess
from pathlib import Path

from penstock.testing.server import Server
from servers import only_penstock

pytestmark = only_penstock

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
BLOCK = re.compile(r"^```sh(?P<stream> stream)?\n(?P<commands>.*?)^```$", re.M | re.S)
WAIT_S = 20


def test_every_example_of_the_page_works(fresh_server: Server) -> None:
    address = fresh_server.http.removeprefix("http://")
    ran = 0
    for block in BLOCK.finditer(PAGE.read_text()):
        for command in block["commands"].splitlines():
            here = re.sub(r"(localhost|127\.0\.0\.1):1337", address, command)
            if block["stream"]:
                assert "event-stream" in stream_head(here), command
            else:
                here = here.replace("curl ", f"curl --silent --show-error --fail-with-body --max-time {WAIT_S} ")
                done = subprocess.run(
                    ["bash", "-c", here], capture_output=True, text=True, timeout=2 * WAIT_S, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            ran += 1
    assert ran > 30


def stream_head(command: str) -> str:
    """The head of an answer that never ends: curl gives up after a second, having seen it."""
    command = command.replace("curl ", "curl --silent --dump-header - --output /dev/null --max-time 1 ")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=WAIT_S, check=False).stdout
