"""Hook of MkDocs: add to docs/ the pages of the top folder, of the rooms and of the API, and lead links to them.

`make site` builds the site. A page in docs/ may link to any file of the repository, as it reads well on a code host; on the
site such a link leads to a page that shows the file. A link to a file that does not exist ends the build.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
TOP_PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
TOP_PAGES |= {"CONTRIBUTING.md": "contributing.md", "LICENSE": "license.md"}
"""Pages of the top folder by their place on the site."""
API = ("stagepost.client", "stagepost.delivery", "stagepost.endpoints", "stagepost.simulation")
"""Modules that programs may import: all names of their `__all__` stay; of a package without one, its modules are the names."""
SHOWN_BYTES_MAX = 200_000
"""Bytes of a file that a page shows; a larger one is named only."""
_CELL_CODE = re.compile(r"<td\b[^>]*>.*?</td>", re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_LANGUAGES = {
    ".py": "python",
    ".json": "json",
    ".ipynb": "json",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".toml": "toml",
}

_asked: dict[str, str] = {}
"""Files of the repository that pages link to, by their page on the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder of the navigation by its pages."""
    config.nav = _expanded(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    made = {place: (ROOT / name).read_text(encoding="utf-8") for name, place in TOP_PAGES.items()}
    made["license.md"] = f"# License\n\n```text\n{made['license.md']}\n```\n"
    for readme in sorted((ROOT / "src" / "stagepost").glob("*/README.md")):
        made[f"rooms/{readme.parent.name}.md"] = readme.read_text(encoding="utf-8")
    for module in API:
        made[f"api/{module.rpartition('.')[2]}.md"] = api_page(module)
    texts = dict(made)
    texts |= {one.src_uri: one.content_string for one in files.documentation_pages()}
    _asked.clear()
    for place, text in texts.items():
        for target in _targets(text):
            if (inside := _in_repository(place, target)) is not None and _page_of(inside) is None:
                _asked[inside] = f"repository/{inside}.md"
    made |= {page: _shown(inside) for inside, page in _asked.items()}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link that leaves docs/ to the page that shows its target."""
    here = page.file.src_uri
    if here.startswith("repository/"):
        return markdown

    def led(match: re.Match[str]) -> str:
        before, target, anchor = match[1], match[2], match[3] or ""
        inside = _in_repository(here, unquote(target)) if target and "://" not in target else None
        if inside is None:
            return match[0]
        place = _page_of(inside) or _asked.get(inside)
        if place is None:
            return match[0]
        return f"{before}{posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"

    parts = _CODE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(led, part) for index, part in enumerate(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the bars of a table's code as bars: the pages escape them for other readers, which take the escape away."""
    return _CELL_CODE.sub(lambda found: found[0].replace("\\|", "|"), html)


def api_page(module_name: str) -> str:
    """Return the page of a module: its docstring, then each public name with the docstring of its source."""
    module = importlib.import_module(module_name)
    lines = [f"# {module_name}", "", (module.__doc__ or "").strip(), ""]
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        home, qualified = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)) or home is None or qualified is None:
            lines += [f"## {name}", "", f"A value of type `{type(thing).__name__}`.", ""]
            continue
        lines += [f"## {name}", "", f"::: {home}.{qualified}", "    options:", "      heading_level: 3", ""]
    if not hasattr(module, "__all__"):
        for found in pkgutil.iter_modules(module.__path__, f"{module_name}."):
            lines += [
                f"## {found.name}",
                "",
                f"::: {found.name}",
                "    options:",
                "      heading_level: 3",
                "",
            ]
    return "\n".join(lines)


def _expanded(entries: list[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            found.append({title: _expanded(below)} if isinstance(below, list) else entry)
        elif entry.endswith("/"):
            found += _pages_below(entry)
        else:
            found.append(entry)
    return found


def _pages_below(folder: str) -> list[str]:
    if folder == "rooms/":
        return [f"rooms/{one.parent.name}.md" for one in sorted((ROOT / "src/stagepost").glob("*/README.md"))]
    if folder == "api/":
        return [f"api/{module.rpartition('.')[2]}.md" for module in API]
    names = sorted(one.name for one in (ROOT / "docs" / folder).glob("*.md"))
    return [folder + name for name in sorted(names, key=lambda name: name != "README.md")]


def _targets(text: str) -> list[str]:
    plain = _CODE.sub("", text)
    return [unquote(found[2]) for found in _LINK.finditer(plain) if found[2] and "://" not in found[2]]


def _in_repository(place: str, target: str) -> str | None:
    """Return the path in the repository that a link of the page means; None for one that stays in docs/."""
    origin = next((name for name, page in TOP_PAGES.items() if page == place), None)
    if origin is None and place.startswith("rooms/"):
        origin = f"src/stagepost/{PurePosixPath(place).stem}/README.md"
    if origin is None:
        origin = f"docs/{place}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    if origin.startswith("docs/") and path.startswith("docs/") and (ROOT / path).is_file():
        return None
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    return path


def _page_of(path: str) -> str | None:
    """Return the page of the site that a file or folder of the repository has anyhow."""
    if path in TOP_PAGES:
        return TOP_PAGES[path]
    if path.startswith("src/stagepost/") and path.endswith("/README.md"):
        return f"rooms/{PurePosixPath(path).parent.name}.md"
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return None


def _shown(path: str) -> str:
    source = ROOT / path
    if source.is_dir():
        names = sorted(one.name for one in source.iterdir() if one.is_file() and not one.name.startswith("."))
        rows = []
        for name in names:
            place = _page_of(f"{path}/{name}")
            if place is None and _is_text(source / name):
                rows += [f"## {name}", "", _fenced(source / name), ""]
            elif place is not None:
                rows.append(
                    f"- [{name}]({posixpath.relpath(place, posixpath.dirname(f'repository/{path}'))})"
                )
            else:
                rows.append(f"- `{name}`")
        return "\n".join([f"# {path}/", "", *rows])
    return f"# {path}\n\n{_fenced(source)}\n"


def _is_text(path: Path) -> bool:
    return path.suffix in {*_LANGUAGES, "", ".md", ".txt", ".tl", ".cddl", ".service", ".sh"}


def _fenced(path: Path) -> str:
    if path.stat().st_size > SHOWN_BYTES_MAX:
        return f"`{path.name}` holds {path.stat().st_size} bytes; it lies in the repository."
    return f"````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8').rstrip()}\n````"
