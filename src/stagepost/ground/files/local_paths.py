"""Paths of this machine, told apart from addresses of remote storage.

`s3a://bucket/tables` is also a well-formed relative path: a program that makes this folder writes into a
local folder called `s3a:`.
"""

from __future__ import annotations

import re
from os import PathLike, fspath

from stagepost.errors import ConfigError

# One slash is enough: a `Path` has lost the second one, and `nas:/exports` is not a folder of this machine
# either.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<rest>.*)", re.DOTALL)


def require_local_path(path: str | PathLike[str], option: str = "") -> None:
    """Raise `ConfigError` if `path` is an address with a scheme, `file://` included.

    `option` names the option by which the user gave the path.
    """
    text = fspath(path)
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return
    scheme = found["scheme"].lower()
    if scheme == "file":
        advice = f"give the path alone: /{found['rest']}"
    else:
        advice = "give a path of this machine; storage elsewhere can be mounted as a folder"
    raise ConfigError(
        f"{option + ' ' if option else ''}{text} is an address with the scheme {scheme}, and only paths of this machine are supported",
        advice=f"{advice} (for a local name with a colon, write the path from / on)",
        found=scheme,
    )
