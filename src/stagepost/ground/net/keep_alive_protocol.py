"""Keep-alive, node to node: the client sends a cookie, and the server must return it unchanged."""

from __future__ import annotations

import msgspec

from stagepost.errors import ErrorCode, RemoteProtocolError, WireRule
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import Layout, Unsigned

PING_INTERVAL_S = 10


# Messages


class KeepAlive(msgspec.Struct, frozen=True):
    cookie: int


class KeepAliveResponse(msgspec.Struct, frozen=True):
    cookie: int


class Done(msgspec.Struct, frozen=True):
    """End of the conversation."""


# Layouts

_COOKIE = Unsigned(16)
DIALECT = Dialect(
    "keep-alive",
    (
        Layout(KeepAlive, 0, (("cookie", _COOKIE),)),
        Layout(KeepAliveResponse, 1, (("cookie", _COOKIE),)),
        Layout(Done, 2),
    ),
)

# States

CLIENT = State("Client", Role.CLIENT, timeout_s=97)
SERVER = State("Server", Role.SERVER, timeout_s=60)
DONE = State("Done", speaker=None)

# Spec

KEEP_ALIVE = ProtocolSpec(
    name="KeepAlive",
    initial=CLIENT,
    edges=(
        Edge(CLIENT, KeepAlive, SERVER),
        Edge(CLIENT, Done, DONE),
        Edge(SERVER, KeepAliveResponse, CLIENT),
    ),
)


def check_cookie(request: KeepAlive, response: KeepAliveResponse) -> None:
    """Raise `RemoteProtocolError` unless the cookie came back unchanged. The state graph cannot hold this
    rule."""
    if response.cookie != request.cookie:
        text = f"KeepAlive: cookie {request.cookie} was sent, {response.cookie} came back"
        raise RemoteProtocolError(
            text,
            code=ErrorCode.PROTOCOL_STATE,
            found=response.cookie,
            state=SERVER.name,
            rule=WireRule.COOKIE_MISMATCH,
        )
