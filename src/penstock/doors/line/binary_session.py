"""Who is there: Hello and Ping. A user and a secret are taken and not looked at: this server knows no users yet."""

from penstock import __version__
from penstock.doors.line.binary_api import Call, handles
from penstock.model.errors import UnsupportedVersion
from penstock.wire.native.messages import VERSION, Done, Hello, Ping, Welcome


@handles(Hello)
async def hello(call: Call, request: Hello) -> Welcome:
    if request.version < 1:
        raise UnsupportedVersion(f"version {request.version} of this protocol was never spoken; {VERSION} is")
    call.connection.welcomed = True
    return Welcome(
        min(request.version, VERSION),
        f"penstock {__version__}",
        call.broker.identities.cluster_id,
        call.connection.max_frame_bytes,
    )


@handles(Ping)
async def ping(call: Call, request: Ping) -> Done:
    return Done()
