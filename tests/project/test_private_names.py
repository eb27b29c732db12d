"""Private names of daphne, Twisted, autobahn and uvicorn that the servers' layer uses: the version that changes one
fails here, with its name.
"""

import ast
import inspect

import pytest
from autobahn.websocket.protocol import WebSocketProtocol, WebSocketServerProtocol
from daphne.http_protocol import WebRequest
from daphne.ws_protocol import WebSocketProtocol as DaphneWebSocket
from twisted.internet.abstract import FileDescriptor
from twisted.internet.tcp import Connection, Port
from twisted.protocols.basic import LineReceiver
from twisted.web import http, server
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.kit.server import ROOT

SERVERS = ROOT / "responses_app" / "web" / "servers"
WHERE = {
    "_GenericHTTPChannelProtocol": http,
    "_buffer": LineReceiver,
    "_command": http.HTTPChannel,
    "_disconnected": http.Request,
    "_encoder": server.Request,
    "_fail_connection": WebSocketProtocol,
    "_handlingRequest": http.HTTPChannel,
    "_networkProducer": http.HTTPChannel,
    "_path": http.HTTPChannel,
    "_perMessageCompress": WebSocketProtocol,
    "_receivedHeaderCount": http.HTTPChannel,
    "_receivedHeaderSize": http.HTTPChannel,
    "_respondToBadRequestAndDisconnect": http.HTTPChannel,
    "_shouldShutdown": Port,
    "_should_upgrade": H11Protocol,
    "_tempDataBuffer": FileDescriptor,
    "_transferDecoder": http.HTTPChannel,
    "_version": http.HTTPChannel,
    "_waitingForTransport": http.HTTPChannel,
    "_writeDisconnected": FileDescriptor,
}
NAMES = {  # that look public, and are overridden here or read
    "allHeadersReceived": http.HTTPChannel,
    "application_queue": DaphneWebSocket,
    "basic_error": WebRequest,
    "closeHandshakeTimeout": WebSocketProtocol,
    "dataBuffer": FileDescriptor,
    "failedByMe": WebSocketProtocol,
    "handshake_deferred": DaphneWebSocket,
    "headerReceived": http.HTTPChannel,
    "lineLengthExceeded": LineReceiver,
    "muted": DaphneWebSocket,
    "send_400_response": H11Protocol,
    "sendHttpErrorResponse": WebSocketServerProtocol,
    "writeSomeData": Connection,
}


@pytest.mark.parametrize("name", [*WHERE, *NAMES])
def test_the_name_is_there(name: str) -> None:
    assert name in inspect.getsource((WHERE | NAMES)[name])


def test_every_private_name_has_its_line() -> None:
    trees = [ast.parse(path.read_text()) for path in SERVERS.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    assert private - own <= set(WHERE)
