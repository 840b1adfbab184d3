"""The reference page of the settings, and how a value is written down. A test keeps `docs/settings.md` the same."""

from collections.abc import Mapping

from penstock.config.settings import SECTIONS, Setting, table

_INTRODUCTION = """\
# Settings

Every setting is one thing under three names: a flag of `penstock serve`, an environment variable, and a key in a
configuration file.

| given as | for example | wins over |
|---|---|---|
| flag | `--log-level debug` | everything below |
| environment variable | `PENSTOCK_LOG_LEVEL=debug` | the file |
| key in the file | `log_level = "debug"` | the default |

The file is named by `--config` or `PENSTOCK_CONFIG` and may be TOML, JSON or YAML, told apart by its extension. A key
that does not exist, or a value that is not allowed, stops the server before it starts. An environment variable that
begins with `PENSTOCK_` and is not known is only warned about. `penstock settings` shows what is set and by whom.

Sizes are numbers of bytes or have a unit: `512KiB`, `64MiB`, `1GB`. Times are numbers in the unit that the name ends
in, or have their own: `500ms`, `30s`, `5m`, `12h`, `7d`. A switch is `--name` or `--no-name` as a flag.

This page is made by `penstock settings --markdown`.
"""


def text_of(value: object) -> str:
    """A value as a person would write it; empty when there is none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={content}" for name, content in value.items())
    return str(value)


def section_of(name: str) -> str:
    section = ""
    for known in table():
        section = SECTIONS.get(known, section)
        if known == name:
            break
    return section


def markdown() -> str:
    parts = [_INTRODUCTION]
    for setting in table().values():
        if setting.name in SECTIONS:
            parts.append(f"## {SECTIONS[setting.name]}\n")
        parts.append(_entry(setting))
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    default = text_of(setting.default)
    return (
        f"### `{setting.name}`\n\n"
        f"{setting.doc}\n\n"
        f"- flag `{setting.flag}`, variable `{setting.variable}`\n"
        f"- allowed: {setting.kind.allowed}\n"
        f"- default: {f'`{default}`' if default else 'none'}\n"
    )
