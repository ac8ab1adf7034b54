"""Metadata hook of the build: the README as a page that an index can show, and the links of the project.

The README links files of the repository, and an index has none of them. With `STAGEPOST_PROJECT_URL` (the address of the
repository, such as https://example.org/stagepost) links and pictures become absolute, at the tag of the version, and the
project gets its links. Without it links become plain text, and pictures are left out: nothing that is built points nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "STAGEPOST_PROJECT_URL"
LINKS = {
    "Repository": "",
    "Documentation": "/tree/v{version}/docs",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Issues": "/issues",
}
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def project_url(value: str) -> str:
    """Return the address without a slash at its end; an address that is not one is an error, never half a link."""
    url = value.strip().rstrip("/")
    if url and not re.fullmatch(r"https://[A-Za-z0-9.-]+(/[A-Za-z0-9._/-]+)?", url):
        raise ValueError(f"{VARIABLE} is {value!r}: write an https address without a query, or unset it")
    return url


def page_of(readme: str, url: str, version: str) -> str:
    if not url:
        without_pictures = re.sub(_PICTURE.pattern + r"\n*", "", readme)
        return _LINK.sub(lambda found: found[1], without_pictures)
    with_pictures = _PICTURE.sub(
        lambda found: f"![{found[1]}]({url}/raw/v{version}/{found[2]})",
        readme,
    )
    return _LINK.sub(lambda found: f"[{found[1]}]({url}/blob/v{version}/{found[2]})", with_pictures)


def links_of(url: str, version: str) -> dict[str, str]:
    return {name: url + rest.format(version=version) for name, rest in LINKS.items()} if url else {}


class ProjectMetadata(MetadataHookInterface):
    """Called by hatchling, which has no type hints for it."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        url = project_url(os.environ.get(VARIABLE, ""))
        version = version_of((root / "src" / "stagepost" / "__init__.py").read_text(encoding="utf-8"))
        text = page_of((root / "README.md").read_text(encoding="utf-8"), url, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = links_of(url, version)


def version_of(source: str) -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise ValueError('src/stagepost/__init__.py has no line __version__ = "…"')
    return found[1]
