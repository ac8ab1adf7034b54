"""Bearers over TCP and Unix sockets: connect to one address, or serve every connection that comes in."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from stagepost.errors import ConfigError, StagepostError, TransportError
from stagepost.ground.net.bearer import Bearer, Trace

CONNECT_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 512
SOCKET_MODE = 0o600
FOLDER_MODE = 0o700
CLOSE_GRACE_S = 5.0

KEEP_ALIVE_IDLE_S = 30
KEEP_ALIVE_PROBE_S = 10
KEEP_ALIVE_PROBES = 3
PEER_IS_DEAD_AFTER_S = KEEP_ALIVE_IDLE_S + KEEP_ALIVE_PROBE_S * KEEP_ALIVE_PROBES
"""Seconds. A host that lost its power sends nothing, and not every profile has a keep-alive of its own: so the kernel probes."""

OnConnection = Callable[[Bearer], Awaitable[None]]

log = logging.getLogger(__name__)


async def connect_unix(
    path: str | Path, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
) -> Bearer:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, bearer = await loop.create_unix_connection(
                lambda: Bearer(peer=str(path), trace=trace), str(path)
            )
    except TimeoutError as error:
        raise _no_answer(str(path), timeout_s) from error
    except PermissionError as error:
        raise ConfigError(
            f"socket {path} may not be used by this user", advice="run as the user that owns the socket"
        ) from error
    except (OSError, ValueError) as error:
        raise _unix_failure(error, f"cannot connect to {path}", TransportError) from error
    return bearer


async def connect_tcp(
    host: str, port: int, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
) -> Bearer:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, bearer = await loop.create_connection(lambda: Bearer(trace=trace), host, port)
            _notice_dead_peer(transport)
    except TimeoutError as error:
        raise _no_answer(f"{host}:{port}", timeout_s) from error
    except (OSError, OverflowError, UnicodeError) as error:
        raise _tcp_failure(error, f"cannot connect to {host}:{port}", TransportError) from error
    return bearer


async def serve_unix(
    path: str | Path,
    on_connection: OnConnection,
    *,
    trace: Trace | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> Server:
    """Listen at `path`, for its owner alone. Replace the file of a dead server; raise `ConfigError` if a
    server is alive there."""
    path = Path(path)
    _prepare_folder(path.parent)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # Before listening starts: until then nobody can connect, whatever mode the file was created with.
        path.chmod(SOCKET_MODE)
    except OSError as error:
        listener.close()
        raise _unix_failure(error, f"cannot listen at {path}", ConfigError) from error
    server = Server(on_connection, trace, connections_max, socket_path=path)
    listening = await asyncio.get_running_loop().create_unix_server(server.accept, sock=listener)
    server.started(listening, str(path))
    return server


async def serve_tcp(
    host: str,
    port: int,
    on_connection: OnConnection,
    *,
    trace: Trace | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> Server:
    """Listen at one address; port 0 takes a free one, which `Server.port` then names."""
    server = Server(on_connection, trace, connections_max)
    loop = asyncio.get_running_loop()
    try:
        listening = await loop.create_server(server.accept, host, port)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _tcp_failure(error, f"cannot listen at {host}:{port}", ConfigError) from error
    server.port = listening.sockets[0].getsockname()[1]
    server.started(listening, f"{host}:{server.port}")
    return server


TURNS_UNTIL_ACCEPTED = 8
"""Turns of the event loop from the kernel's notice of a new connection until the server has ended one that came too late."""


class Server:
    """Listener that runs `on_connection` for each connection, and closes the connection when that returns."""

    def __init__(
        self,
        on_connection: OnConnection,
        trace: Trace | None,
        connections_max: int,
        socket_path: Path | None = None,
    ) -> None:
        self.address = ""
        self.port: int | None = None
        self._on_connection = on_connection
        self._trace = trace
        self._connections_max = connections_max
        self._socket_path = socket_path
        self._socket_identity = None if socket_path is None else _identity(socket_path)
        self._listening: asyncio.Server | None = None
        self._running: dict[asyncio.Task[None], Bearer] = {}
        self._is_closing = False

    @property
    def connection_count(self) -> int:
        return len(self._running)

    def started(self, listening: asyncio.Server, address: str) -> None:
        self.address = address
        self._listening = listening

    def accept(self) -> Bearer:
        """Return the bearer for a new connection; asyncio calls this."""
        return Bearer(trace=self._trace, on_connected=self._accepted)

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop accepting, end every connection in order, and abort those that take longer than `grace_s`."""
        self._is_closing = True
        if self._listening is not None:
            self._listening.close()
        # Leave the path alone if another server has taken it over meanwhile.
        if self._socket_path is not None and _identity(self._socket_path) == self._socket_identity:
            self._socket_path.unlink(missing_ok=True)
        running = dict(self._running)
        for task in running:
            task.cancel()
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*running, return_exceptions=True)
                for bearer in running.values():
                    bearer.close()
                    await bearer.wait_closed()
        except TimeoutError:
            for bearer in running.values():
                bearer.abort(TransportError(f"server at {self.address} is closing", peer=bearer.peer))
                await bearer.wait_closed()
        for _ in range(TURNS_UNTIL_ACCEPTED):
            await asyncio.sleep(0)

    def _accepted(self, bearer: Bearer, transport: asyncio.BaseTransport) -> None:
        _notice_dead_peer(transport)
        if self._is_closing:
            bearer.abort(TransportError(f"server at {self.address} is closing"))
            return
        if len(self._running) >= self._connections_max:
            log.warning(
                "connection refused",
                extra={"address": self.address, "connections_max": self._connections_max},
            )
            bearer.abort(
                TransportError(
                    f"server at {self.address} already has {self._connections_max} connections",
                    limit=self._connections_max,
                )
            )
            return
        task = asyncio.get_running_loop().create_task(self._serve(bearer))
        self._running[task] = bearer
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _serve(self, bearer: Bearer) -> None:
        try:
            await self._on_connection(bearer)
        except StagepostError as error:
            log.info(
                "connection ended", extra={"peer": bearer.peer, "code": error.code, "reason": error.text}
            )
            bearer.abort(error)
        except (
            Exception
        ) as error:  # the boundary of a connection's task: one broken handler must not stop the server
            log.exception("connection handler failed", extra={"peer": bearer.peer})
            bearer.abort(TransportError(f"the handler of {bearer.peer} failed: {error!r}"))
        finally:
            bearer.close()
        await bearer.wait_closed()


def _notice_dead_peer(transport: asyncio.BaseTransport) -> None:
    raw = transport.get_extra_info("socket")
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Some systems do not let a program choose these times; theirs apply then.
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_PROBE_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
    ):
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(
            f"folder {folder} for the socket cannot be used: {error.strerror}",
            advice="choose another socket path",
        ) from error
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"folder {folder} for the socket has mode {stat.S_IMODE(status.st_mode):04o}: "
            "other users could replace the socket",
            advice=f"run chmod 700 on {folder}, or choose a socket path in a folder of your own",
            found=stat.S_IMODE(status.st_mode),
        )
    if status.st_uid not in (0, os.getuid()):
        raise ConfigError(
            f"folder {folder} for the socket belongs to user {status.st_uid}, who could replace the socket",
            advice="choose a socket path in a folder of your own",
            found=status.st_uid,
        )


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unix_failure(error, f"cannot listen at {path}", ConfigError) from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{path} exists and is not a socket", advice="remove it or choose another socket path"
        )
    if _is_listening(path):
        raise ConfigError(
            f"another server is listening at {path}", advice="stop it first or choose another socket path"
        )
    path.unlink(missing_ok=True)


def require_free(host: str, port: int) -> None:
    """Raise `ConfigError` if this process cannot listen there now: a node that needs several ports finds out before it has
    begun with one.
    """
    where = f"cannot listen at {f'[{host}]' if ':' in host else host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _tcp_failure(error, where, ConfigError) from error


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # alive, with a full queue of connections
            return True
        except OSError as error:
            raise _unix_failure(
                error, f"cannot tell whether a server is listening at {path}", ConfigError
            ) from error
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _no_answer(address: str, timeout_s: float) -> TransportError:
    return TransportError(
        f"cannot connect to {address}: no answer within {timeout_s:g} s",
        advice="check the address and the network",
    )


def _unix_failure(
    error: Exception, what: str, kind: type[ConfigError] | type[TransportError]
) -> ConfigError | TransportError:
    match error:
        case FileNotFoundError():
            return kind(f"{what}: there is no such socket", advice="start the node, or check the socket path")
        case ConnectionRefusedError():
            return kind(f"{what}: nobody is listening there", advice="start the node that owns this socket")
        case PermissionError():
            return kind(f"{what}: this user may not", advice="choose a socket path in a folder of your own")
        case OSError(errno=number) if number is not None:
            return kind(f"{what}: {error.strerror}", advice="choose another socket path")
    # Python itself refuses a path that does not fit into a socket address, and gives no error number then.
    return ConfigError(f"{what}: {error}", advice="choose a shorter socket path", found=len(what))


def _tcp_failure(
    error: Exception, what: str, kind: type[ConfigError] | type[TransportError]
) -> ConfigError | TransportError:
    match error:
        case socket.gaierror():
            return kind(f"{what}: the host name is not known", advice="check the host name")
        case OverflowError():
            return ConfigError(f"{what}: a port is a number in 0..65535", advice="check the port")
        case UnicodeError():
            return ConfigError(f"{what}: this is not a valid host name", advice="check the host name")
        case ConnectionRefusedError():
            return kind(f"{what}: nobody is listening there", advice="start the node, or check host and port")
        case PermissionError():
            return kind(f"{what}: this user may not", advice="choose a port above 1023")
        case OSError(errno=errno.EADDRINUSE):
            return kind(f"{what}: the port is in use", advice="stop the other server or choose another port")
        case OSError(errno=errno.EADDRNOTAVAIL):
            return kind(
                f"{what}: this machine has no such address", advice="listen at one of its own addresses"
            )
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return kind(f"{what}: {detail}", advice="check the address and the network")
