"""Store of tables: the address under which they lie, a local folder or object storage, with its storage options.

Whatever writes or reads a table goes through a `TableStore`, in the driver and in Spark's workers alike, so a table on
object storage takes the same way as one in a folder. Needs no Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stagepost.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3",)
"""Schemes of object storage whose conditional writes make a commit safe; any other address is refused."""

OPTION_PREFIX = "AWS_"
"""Beginning of the names of settings by which object storage is reached, as the `deltalake` package has them."""

_READ_OTHERWISE = re.compile(r"[?#\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""Characters of an address that the `deltalake` package, which takes it for a URL, would read as others."""

SAID_MAX = 300
"""Characters, at most, of a library's failure that an error of ours repeats."""

_MARKS = re.compile("\x1b\\[[0-9;]*m|\u21b3")

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<rest>.*)", re.DOTALL)


class TableStore(msgspec.Struct, frozen=True):
    """Place of a set of tables. `address` is an absolute local path or `s3://bucket/prefix`; a worker gets it pickled.

    `options` are the storage options of the `deltalake` package (`AWS_ENDPOINT_URL`, …); what is not given is taken from
    the environment of the process that reads or writes.
    """

    address: str
    options: dict[str, str] = {}

    @classmethod
    def at(
        cls, address: TableStore | str | os.PathLike[str], options: dict[str, str] | None = None
    ) -> TableStore:
        """Return the store at an address as a person writes it; `ConfigError` for a scheme that is not supported."""
        if isinstance(address, TableStore):
            return address
        text = os.fspath(address)
        found = _ADDRESS.fullmatch(text)
        whole = os.path.abspath(text) if found is None else text
        if (odd := _READ_OTHERWISE.search(whole)) is not None:
            raise ConfigError(
                f"{whole!r} is not a valid address of tables: {odd[0]!r} would be read as part of a URL",
                advice="choose a folder or prefix without question marks, number signs, backslashes and %XX",
                found=odd[0],
            )
        if found is None:
            return cls(whole, options or {})
        scheme = found["scheme"].lower()
        if scheme not in SCHEMES or len(found["slashes"]) != 2:
            raise ConfigError(
                f"{text} is not a valid address of tables: its scheme is {scheme}",
                advice=f"give a path of this machine, or an address of {', '.join(f'{one}://' for one in SCHEMES)}",
                found=scheme,
            )
        return cls(f"{scheme}://{found['rest'].rstrip('/')}", options or {})

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        """Return the address alone: among the options are keys that no log may show."""
        return f"{type(self).__name__}({self.address!r})"

    @property
    def is_local(self) -> bool:
        return "://" not in self.address

    @property
    def folder(self) -> Path:
        """Return the local folder; `StorageError` for tables on object storage."""
        if not self.is_local:
            raise StorageError(
                f"{self.address} is not a folder of this machine", advice="give a local path with --out"
            )
        return Path(self.address)

    def of(self, name: str) -> str:
        """Return the address of one table."""
        return f"{self.address}/{name}"

    def path(self, table: str, file: str) -> str:
        """Return the address of one file of a table."""
        return f"{self.address}/{table}/{file}"

    def file_system(self, table: str) -> FileSystem:
        """Return the file system whose root is the folder of a table."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.of(table), fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.of(table), self.options or None))

    def put(self, table: str, file: str, content: bytes) -> None:
        """Write a small file beside or in a table on object storage; its name stands for its content."""
        import pyarrow as pa

        # All of it is in the buffer: what pyarrow writes past one it hands on in a form that the package does not take.
        with pa.BufferedOutputStream(
            self.file_system(table).open_output_stream(file), len(content) + 1
        ) as stream:
            stream.write(content)


def storage_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of object storage in an environment."""
    return {name: value for name, value in environment.items() if name.startswith(OPTION_PREFIX)}


def said(error: BaseException) -> str:
    """Return what a library says of a failure in one line of text, without its colours and arrows."""
    return " ".join(_MARKS.sub(" ", str(error)).split())[:SAID_MAX] or type(error).__name__
