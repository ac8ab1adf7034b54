"""Channels: the bytes of one mini-protocol, in and out, as a conversation needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ProtocolChannel(Protocol):
    """End of one mini-protocol instance. It has one reader; any task may write.

    Reading has two forms: `read` waits, and `read_now` is for a reader that `on_data` wakes by a call. The
    second form costs neither a task nor a turn of the loop where no waiting is needed.
    """

    async def read(self) -> bytes:
        """Return the next piece of the byte stream, cut anywhere; b"" at the orderly end of the connection.

        Data that arrived before the connection ended can still be read. Then raise the error that closed it:
        `TransportError` if it failed, a `RemoteProtocolError` if the peer broke a rule of the multiplexer.
        """
        ...

    def on_data(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` each time after bytes came and when the channel has ended; None stops the calls.

        Bytes that came before are not announced again, so look first. The channel never calls `callback`
        inside of one of its own methods, and `callback` must not raise.
        """
        ...

    @property
    def has_data(self) -> bool:
        """Return whether `read_now` would return bytes or the end of the channel, or raise."""
        ...

    def read_now(self) -> bytes | None:
        """Do what `read` does, but return None where that would wait."""
        ...

    async def write(self, data: bytes) -> None:
        """Return once the egress buffer has accepted all of `data`; a slow peer makes the caller wait.

        The channel accepts either all of `data` or, if the wait is cancelled or fails, nothing.
        """
        ...

    @property
    def has_room(self) -> bool:
        """Return whether `write_now` would accept data, or raise because nothing can be written any more."""
        ...

    def write_now(self, data: bytes) -> bool:
        """Do what `write` does, but return False and accept nothing where that would wait."""
        ...

    def close(self, unread: bytes = b"") -> None:
        """Give up this end. Written data are still sent; data that arrive later are the peer's mistake.

        `unread` are bytes that came after the end of the conversation: the next instance of the
        mini-protocol, if there is one, begins with them.
        """
        ...
