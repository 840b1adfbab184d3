"""Commands in processes of their own that need not start from nothing.

Most of a command's time is Python's, importing it. The nursery is a process that has imported it, and becomes the
command in a child: `sys.argv`, the environment, standard input and output are the child's own, as is its exit code.
"""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import IO


class Nursery:
    """One command at a time."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], start_new_session=True
            )

    def run(self, arguments: list[str], env: dict[str, str], given: str, timeout_s: float) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            stdin.write(given.encode())
            stdin.seek(0)
            order = json.dumps([arguments, env, os.getcwd()]).encode()
            socket.send_fds(self._here, [order], [file.fileno() for file in (stdin, stdout, stderr)])
            self._here.settimeout(timeout_s)
            try:
                code = int(self._here.recv(16))
            except TimeoutError:
                self.close()
                raise subprocess.TimeoutExpired(arguments, timeout_s, _text(stdout), _text(stderr)) from None
            return code, _text(stdout), _text(stderr)

    @property
    def closed(self) -> bool:
        return self._here.fileno() < 0

    def close(self) -> None:
        if self.closed:
            return
        self._here.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


# -- the process --------------------------------------------------------------------------------------------------


def serve(orders: socket.socket) -> None:
    from penstock.__main__ import main

    sys.argv = ["penstock", "topic", "list", "--server", "127.0.0.1:1"]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()  # nobody listens there: it ends, and has imported what only commands need
    while True:
        order, files, _, _ = socket.recv_fds(orders, 1 << 20, 3)
        if not order:
            return
        child = os.fork()
        if child == 0:
            for number, file in enumerate(files):
                os.dup2(file, number)
            arguments, env, directory = json.loads(order)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(directory)
            sys.argv = ["penstock", *arguments]
            main()
        for file in files:
            os.close(file)
        orders.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
