"""Defects planted into a real node's process, to show that a suite notices them: code that Python runs before the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def planted(folder: Path, code: str) -> Mapping[str, str]:
    """The environment of a node with this defect."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(dedent(code))
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path[1:]]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
