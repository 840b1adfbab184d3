"""One request from its head to its answer."""

import asyncio
import http

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from penstock.doors.http.call import Reply
from penstock.doors.http.errors import PROBLEM, HttpError, problem_of


class Cycle(RequestResponseCycle):
    held_bytes = 0
    reader = False  # changes nothing, may be cancelled
    task: "asyncio.Task[None] | None" = None

    def respond(self, reply: Reply) -> None:
        """The whole answer in one write: head and body apart would cost a system call each."""
        if self.disconnected or self.response_started:
            return
        self.response_started = self.response_complete = True
        lines = [STATUS_LINE[reply.status]]
        lines += [b"%b: %b\r\n" % header for header in self.default_headers]
        if reply.content_type:
            lines.append(b"content-type: %b\r\n" % reply.content_type.encode())
        if reply.status != http.HTTPStatus.NO_CONTENT:
            lines.append(b"content-length: %d\r\n" % len(reply.body))
        lines += [b"%b: %b\r\n" % header for header in reply.headers]
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self.scope["method"] != "HEAD":
            lines.append(reply.body)
        self.transport.write(b"".join(lines))
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def farewell(error: HttpError) -> bytes:
    """The last answer of a connection whose next request could not be understood."""
    body = msgspec.json.encode(problem_of(error))
    head = b"%bcontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (STATUS_LINE[error.status], PROBLEM.encode(), len(body)) + body
