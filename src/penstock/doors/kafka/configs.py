"""Settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from collections import Counter
from types import SimpleNamespace as Struct

from penstock.broker.observe import SettingView
from penstock.doors.kafka.api import Call, handles
from penstock.doors.kafka.errors import error_code
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.model.ids import check_topic_name
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

TOPIC, BROKER = 2, 4
OWN, SERVER, DEFAULT = 1, 4, 5  # where a value comes from
SET, REMOVE, APPEND, SUBTRACT = _OPERATIONS = 0, 1, 2, 3
_STRING = 2


@handles(ApiKey.DESCRIBE_CONFIGS, 1, 4)
async def describe_configs(call: Call) -> Struct:
    return Struct(results=[_describe(call, resource) for resource in call.body.resources])


def _describe(call: Call, resource: Struct) -> Struct:
    reply = Struct(
        error_code=0,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
    try:
        if resource.resource_type == TOPIC:
            views = call.broker.observer.settings(call.principal, resource.resource_name)
            entries = [_described(v, call.body.include_synonyms, call.body.include_documentation) for v in views]
        elif resource.resource_type == BROKER:
            entries = _server_entries(call, resource.resource_name)
        else:
            raise InvalidRequest(f"resource type {resource.resource_type} has no settings here")
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
        return reply
    keys = resource.configuration_keys  # null or none: all of them
    reply.configs = [entry for entry in entries if not keys or entry.name in keys]
    return reply


def config_entry(view: SettingView) -> Struct:
    """A setting as CreateTopics tells it too."""
    return Struct(
        name=view.setting.name,
        value=view.value,
        read_only=False,
        config_source=OWN if view.own else SERVER if view.server else DEFAULT,
        is_sensitive=False,
    )


def _described(view: SettingView, synonyms: bool, documentation: bool) -> Struct:
    entry = config_entry(view)
    entry.config_type = int(view.setting.kind)
    if synonyms:
        entry.synonyms = [Struct(name=entry.name, value=entry.value, source=entry.config_source)]
        if entry.config_source != DEFAULT:
            entry.synonyms.append(Struct(name=entry.name, value=view.setting.default, source=DEFAULT))
    entry.documentation = view.setting.doc if documentation else None
    return entry


def _server_entries(call: Call, name: str) -> list[Struct]:
    call.broker.authorizer.check(call.principal, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, "cluster")
    if name not in ("", str(call.advertised.node_id)):
        raise InvalidRequest(f"there is no node {name!r}; this is node {call.advertised.node_id}")
    return [
        Struct(
            name=key,
            value=value,
            read_only=True,
            config_source=SERVER,
            is_sensitive=False,
            config_type=_STRING,
            documentation=None,
        )
        for key, value in sorted(call.broker.about.items())
    ]


@handles(ApiKey.ALTER_CONFIGS, 0, 2)
async def alter_configs(call: Call) -> Struct:
    """The old call: what it does not name falls back to its default."""
    return await _alter_all(call, incremental=False)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(call: Call) -> Struct:
    return await _alter_all(call, incremental=True)


async def _alter_all(call: Call, *, incremental: bool) -> Struct:
    counts = Counter((r.resource_type, r.resource_name) for r in call.body.resources)
    repeated = {key for key, count in counts.items() if count > 1}
    return Struct(responses=[await _alter(call, r, repeated, incremental=incremental) for r in call.body.resources])


async def _alter(call: Call, resource: Struct, repeated: set[tuple[int, str]], *, incremental: bool) -> Struct:
    reply = Struct(
        error_code=0,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    administrator, validate_only = call.broker.administrator, call.body.validate_only
    try:
        if resource.resource_type != TOPIC:
            raise InvalidRequest("only topics are altered here; the server's settings stand in its configuration")
        if (resource.resource_type, resource.resource_name) in repeated:
            raise InvalidRequest(f"topic {resource.resource_name!r} stands more than once in the request")
        check_topic_name(resource.resource_name)
        names = [config.name for config in resource.configs]
        if len(set(names)) != len(names):
            raise InvalidRequest("a setting stands more than once in the request")
        if incremental:
            if any(config.config_operation not in _OPERATIONS for config in resource.configs):
                raise InvalidRequest("a setting is set, removed, appended to or subtracted from; nothing else")
            chosen = {operation: _values(resource, operation) for operation in (SET, APPEND, SUBTRACT)}
            changes: dict[str, str | None] = {**chosen[SET], **dict.fromkeys(_values(resource, REMOVE))}
            await administrator.change_settings(
                call.principal,
                resource.resource_name,
                changes,
                chosen[APPEND],
                chosen[SUBTRACT],
                validate_only=validate_only,
            )
        else:
            settings = _with_values({config.name: config.value for config in resource.configs})
            await administrator.replace_settings(
                call.principal, resource.resource_name, settings, validate_only=validate_only
            )
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
    return reply


def _values(resource: Struct, operation: int) -> dict[str, str]:
    chosen = {c.name: c.value for c in resource.configs if c.config_operation == operation}
    return chosen if operation == REMOVE else _with_values(chosen)


def _with_values(settings: dict[str, str]) -> dict[str, str]:
    if None in settings.values():
        raise InvalidRequest("a setting without a value")
    return settings
