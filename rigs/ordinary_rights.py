"""Rights of an ordinary user for a thread of root: permissions of files are obeyed, as they are for everybody else."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root's right to open what nobody may open."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


class _Rights(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def ordinary_rights() -> Iterator[None]:
    """Give up, in this thread and in threads that it starts, root's right to read and write every file; take it back at the end."""
    system = ctypes.CDLL(None, use_errno=True)
    header, rights = _Header(_VERSION_3, 0), (_Rights * 2)()

    def call(function: str) -> None:
        if getattr(system, function)(ctypes.byref(header), rights) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call("capget")
    before = rights[0].effective
    rights[0].effective = before & ~_OVERRIDES
    call("capset")
    try:
        yield
    finally:
        rights[0].effective = before
        call("capset")
