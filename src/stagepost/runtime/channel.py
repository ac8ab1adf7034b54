"""What a conversation needs of the outside world: bytes of one mini-protocol, in and out."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """One end of one mini-protocol instance. One task reads; any task may write."""

    async def read(self) -> bytes:
        """The next piece of the byte stream, cut anywhere; b"" at the orderly end of the connection.

        What arrived before the connection ended can still be read. Then raises the error that closed it:
        `TransportError` if it failed, a `RemoteProtocolError` if the peer broke a rule of the multiplexer.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Returns once the egress buffer has accepted all of `data`; a slow peer makes it wait.

        Either all of `data` is accepted or, if the wait is cancelled or fails, nothing.
        """
        ...

    def close(self, unread: bytes = b"") -> None:
        """Give up this end. What was written is still sent; what arrives later is the peer's mistake.

        `unread` was read and came behind the end of the conversation: the next instance of the mini-protocol, if there
        is one, begins with it.
        """
        ...
