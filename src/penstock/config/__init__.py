"""One typed tree of settings; the file (TOML, JSON, YAML), environment, flags and reference docs derive from it.

`settings` is the table, `kinds` what a value can be, `sources` where values come from, `reference` the docs page.
Only the entry points and the composition root know this room; everyone else is handed the values they need.
"""

from penstock.config.kinds import Listen, Storage
from penstock.config.reference import markdown, section_of, text_of
from penstock.config.settings import Setting, Settings, table
from penstock.config.sources import ConfigError, Loaded, UsageError, load, parse_flags

__all__ = [
    "ConfigError",
    "Listen",
    "Loaded",
    "Setting",
    "Settings",
    "Storage",
    "UsageError",
    "load",
    "markdown",
    "parse_flags",
    "section_of",
    "table",
    "text_of",
]
