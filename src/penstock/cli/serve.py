"""`penstock serve`: settle the settings, then hand over to the composition root.

This is the quick path of the entry point: nothing here may import typer or rich, they would be half of the start-up
time. The flags come from the table of settings; the help page is made from the same table by `cli.main`.
"""

import sys
from collections.abc import Mapping, Sequence

from penstock.config import ConfigError, UsageError, load, parse_flags

EXIT_FAILED = 1
EXIT_USAGE = 2


def serve(arguments: Sequence[str]) -> int:
    """Run the server that these arguments describe; the exit code of the process."""
    try:
        flags, file = parse_flags(arguments)
    except UsageError as error:
        print(f"penstock serve: {error}; see 'penstock serve --help'", file=sys.stderr)
        return EXIT_USAGE
    return run_server(flags, file)


def run_server(flags: Mapping[str, Sequence[str]], file: str | None) -> int:
    """Run until told to stop. `flags` holds texts by setting; whatever is wrong with them is one line on stderr."""
    from penstock import app

    try:
        loaded = load(flags, file=file, check_topic_setting=app.check_topic_setting)
    except ConfigError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_FAILED
    for warning in loaded.warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)
    return app.run(loaded.settings)
