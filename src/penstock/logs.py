"""How log lines look: one line each, for people or for machines, on standard error."""

import json
import logging
import sys
import time

_CONSOLE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logs(level: str, style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    formatter = _JsonFormatter() if style == "json" else logging.Formatter(_CONSOLE, "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
