"""What a conversation needs of the outside world: bytes of one mini-protocol, in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Channel(Protocol):
    """One end of one mini-protocol instance. One reader; any task may write.

    Reading has two forms: `read` waits, and `read_now` is for a reader that `on_data` wakes by a call. Whatever
    needs no waiting costs neither a task nor a turn of the loop in the second form.
    """

    async def read(self) -> bytes:
        """The next piece of the byte stream, cut anywhere; b"" at the orderly end of the connection.

        What arrived before the connection ended can still be read. Then raises the error that closed it:
        `TransportError` if it failed, a `RemoteProtocolError` if the peer broke a rule of the multiplexer.
        """
        ...

    def on_data(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` each time after bytes came and when the channel has ended; None: nobody any more.

        What is there already is not announced again, so look first. It is never called inside of a call of this
        channel, and must not raise.
        """
        ...

    @property
    def has_data(self) -> bool:
        """Whether `read_now` would say something: bytes, or that the channel has ended."""
        ...

    def read_now(self) -> bytes | None:
        """As `read`; None where that would wait."""
        ...

    async def write(self, data: bytes) -> None:
        """Returns once the egress buffer has accepted all of `data`; a slow peer makes it wait.

        Either all of `data` is accepted or, if the wait is cancelled or fails, nothing.
        """
        ...

    @property
    def has_room(self) -> bool:
        """Whether `write_now` would accept something, or say why nothing can be written any more."""
        ...

    def write_now(self, data: bytes) -> bool:
        """As `write`; False, and nothing accepted, where that would wait."""
        ...

    def close(self, unread: bytes = b"") -> None:
        """Give up this end. What was written is still sent; what arrives later is the peer's mistake.

        `unread` was read and came behind the end of the conversation: the next instance of the mini-protocol, if there
        is one, begins with it.
        """
        ...
