"""`penstock settings`: what can be set, what is set, and the reference page made of it."""

from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.terminal import fail, guarded, note, print_json, print_table
from penstock.config import ConfigError, load, markdown, table, text_of


@guarded
def settings(
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="Show what a server with this file would use.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page of the docs.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show the settings of a server and where they come from."""
    if as_markdown:
        print(markdown(), end="")
        return
    try:
        loaded = load(file=config)
    except ConfigError as error:
        fail(str(error))
    for warning in loaded.warnings:
        note(warning)
    rows = [
        {
            "name": setting.name,
            "value": text_of(getattr(loaded.settings, setting.name)),
            "default": text_of(setting.default),
            "set_by": loaded.places.get(setting.name),
            "allowed": setting.kind.allowed,
            "help": setting.doc,
        }
        for setting in table().values()
    ]
    if as_json:
        print_json(rows)
    else:
        shown = [[row["name"], row["value"] or None, row["set_by"] or "default", row["help"]] for row in rows]
        print_table(["Setting", "Value", "Set by", "What it does"], shown)
