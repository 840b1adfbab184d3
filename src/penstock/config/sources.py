"""Where settings come from: flags over environment over file over defaults. Every complaint names its place.

bad value       kafka = 'here' (in penstock.toml:3) is not allowed: allowed is host:port, …
unknown key     unknown setting 'kafak' (in penstock.toml:3): did you mean 'kafka'?
"""

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.config.settings import Setting, Settings, table
from penstock.model.errors import PenstockError

# Variables with our prefix that are no server settings: the command line and the build read them.
OTHER_VARIABLES = frozenset({"PENSTOCK_SERVER", "PENSTOCK_PURE", "PENSTOCK_CONFIG"})
VARIABLE_PREFIX = "PENSTOCK_"
FILE_BYTES_MAX = 4 << 20

# Raises ValueError or a PenstockError for a topic setting that the log does not know or allow.
TopicSettingCheck = Callable[[str, str], object]


class ConfigError(Exception):
    """The settings cannot be used; the message names the key, the value, the place and what is allowed."""


class UsageError(Exception):
    """The command line itself is wrong: an unknown flag, or one without its value."""


class Loaded(NamedTuple):
    settings: Settings
    places: Mapping[str, str]  # where each setting that is not at its default was set
    warnings: Sequence[str]


class _Given(NamedTuple):
    raw: object
    place: str


def load(
    flags: Mapping[str, Sequence[str]] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
    check_topic_setting: TopicSettingCheck | None = None,
) -> Loaded:
    """Settle every setting. `flags` holds the texts given for each setting's name, as `parse_flags` returns them."""
    environment = os.environ if environment is None else environment
    given_in_environment, warnings = _from_environment(environment)
    file = file or environment.get("PENSTOCK_CONFIG") or None
    sources = [_from_file(file) if file else {}, given_in_environment, _from_flags(flags or {})]

    values: dict[str, object] = {}
    places: dict[str, str] = {}
    for source in sources:  # weakest first, so that the strongest has the last word
        for name, givens in source.items():
            setting = table()[name]
            for given in givens:
                value = _parsed(setting, given)
                if isinstance(value, dict):
                    _check_topic_settings(name, value, given.place, check_topic_setting)
                    value = {**_as_table(values.get(name)), **value}
                values[name] = value
                places[name] = given.place
    return Loaded(_consistent(Settings(**values), places), places, warnings)  # type: ignore[arg-type]


def parse_flags(arguments: Sequence[str]) -> tuple[dict[str, list[str]], str | None]:
    """Split the arguments of `serve` into texts by setting and the configuration file.

    `--name value`, `--name=value`; a switch also stands alone, or as `--no-name`.
    """
    by_flag = {setting.flag: setting for setting in table().values()}
    flags: dict[str, list[str]] = {}
    file = None
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, equals, text = argument.partition("=")
        negated = by_flag.get("--" + flag.removeprefix("--no-")) if flag.startswith("--no-") else None
        setting = by_flag.get(flag)
        if setting is None and negated is not None and _is_switch(negated) and not equals:
            flags[negated.name] = ["false"]
            continue
        if setting is None and flag not in ("--config", "-c"):
            raise UsageError(_unknown_argument(argument, flag, [*by_flag, "--config"]))
        if not equals:
            if setting is not None and _is_switch(setting) and not (rest and not rest[0].startswith("-")):
                flags[setting.name] = ["true"]
                continue
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{flag} needs a value")
            text = rest.pop(0)
        if setting is None:
            file = text
        elif isinstance(setting.default, dict):
            flags.setdefault(setting.name, []).append(text)
        else:
            flags[setting.name] = [text]
    return flags, file


def _is_switch(setting: Setting) -> bool:
    return isinstance(setting.default, bool)


def _unknown_argument(argument: str, flag: str, known: Sequence[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    return f"unknown option {flag}{_did_you_mean(flag, known)}"


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {close[0]!r}?" if close else ""


# -- each source --------------------------------------------------------------------------------------------


def _from_flags(flags: Mapping[str, Sequence[str]]) -> dict[str, list[_Given]]:
    return {name: [_Given(text, f"flag {table()[name].flag}") for text in texts] for name, texts in flags.items()}


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, list[_Given]], list[str]]:
    """Unknown variables are a warning only: another program's, or a newer version's, may share our prefix."""
    by_variable = {setting.variable: setting for setting in table().values()}
    given: dict[str, list[_Given]] = {}
    warnings = []
    for variable, text in environment.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable in OTHER_VARIABLES:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            hint = _did_you_mean(variable, list(by_variable)) or ": no setting has this name"
            warnings.append(f"environment variable {variable} is ignored{hint}")
        else:
            given[setting.name] = [_Given(text, f"environment variable {variable}")]
    return given, warnings


def _from_file(path: str) -> dict[str, list[_Given]]:
    text = _read(path)
    content = _decode(path, text)
    if content is None:  # an empty YAML file
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a table of settings")
    given = {}
    for key, raw in content.items():
        place = f"{path}{_line_of(str(key), text)}"
        if key not in table():
            hint = _did_you_mean(str(key), list(table())) or ": see 'penstock settings' for the list"
            raise ConfigError(f"unknown setting {key!r} (in {place}){hint}")
        given[key] = [_Given(raw, place)]
    return given


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read the configuration file {path}: {reason}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the configuration file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not UTF-8: {error}") from None


def _decode(path: str, text: str) -> object:
    """Each format's reader is imported only when a file needs it: it would be half of the start-up time."""
    extension = os.path.splitext(path)[1].lower()
    try:
        if extension == ".toml":
            import tomllib

            return tomllib.loads(text)
        if extension == ".json":
            return json.loads(text)
        if extension in (".yaml", ".yml"):
            return _decode_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not well-formed {extension[1:].upper()}: {error}") from None
    raise ConfigError(f"the configuration file {path} must end in .toml, .json, .yaml or .yml")


def _decode_yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _line_of(key: str, text: str) -> str:
    """`:3` if the key visibly starts on line 3 of the file; the readers do not tell."""
    match = re.search(rf"""^[ \t{{,\[]*["']?{re.escape(key)}["']?[ \t]*[\]=:.]""", text, re.MULTILINE)
    return f":{text.count(chr(10), 0, match.start()) + 1}" if match else ""


# -- values -------------------------------------------------------------------------------------------------


def _parsed(setting: Setting, given: _Given) -> object:
    try:
        return setting.kind.parse(given.raw)
    except ValueError as error:
        raise ConfigError(f"{setting.name} = {given.raw!r} ({_in(given.place)}) is not allowed: {error}") from None


def _in(place: str) -> str:
    return place if place.startswith(("flag ", "environment ")) else f"in {place}"


def _as_table(value: object) -> Mapping[str, str]:
    return value if isinstance(value, dict) else {}


def _check_topic_settings(name: str, values: Mapping[str, str], place: str, check: TopicSettingCheck | None) -> None:
    if check is None:
        return
    for key, value in values.items():
        try:
            check(key, value)
        except (ValueError, PenstockError) as error:
            raise ConfigError(f"{name}: {key} = {value!r} ({_in(place)}) is not allowed: {error}") from None


def _consistent(settings: Settings, places: Mapping[str, str]) -> Settings:
    """What no single value can tell."""
    path = settings.storage.path
    if path is not None:
        if "data" in places and settings.data != path:
            raise ConfigError(
                f"storage = '{settings.storage}' ({_in(places['storage'])}) and data = {settings.data!r} "
                f"({_in(places['data'])}) name two data directories: give only one of them"
            )
        settings = msgspec.structs.replace(settings, data=path)
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise ConfigError(
            f"group_min_session_timeout_ms = {settings.group_min_session_timeout_ms} is not allowed: it is more than "
            f"group_max_session_timeout_ms = {settings.group_max_session_timeout_ms}"
        )
    return settings
