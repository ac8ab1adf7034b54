"""The description that an index shows: its links lead somewhere or are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.project_metadata import links_of, page_of, project_url, version_of

ROOT = Path(__file__).parents[2]
URL = "https://example.org/people/stagepost"
PAGE = "See [the pages](docs/a.md#part), [a site](https://example.org/x) and [above](#start).\n\n![A picture](docs/a.png)\n\nEnd.\n"


def test_without_an_address_links_are_plain_text_and_pictures_are_left_out() -> None:
    assert (
        page_of(PAGE, "", "0.2.0")
        == "See the pages, [a site](https://example.org/x) and [above](#start).\n\nEnd.\n"
    )
    assert links_of("", "0.2.0") == {}


def test_with_an_address_links_and_pictures_lead_to_the_tag_of_the_version() -> None:
    page = page_of(PAGE, URL, "0.2.0")
    assert f"[the pages]({URL}/blob/v0.2.0/docs/a.md#part)" in page
    assert f"![A picture]({URL}/raw/v0.2.0/docs/a.png)" in page
    assert "[above](#start)" in page
    assert links_of(URL, "0.2.0")["Changelog"] == f"{URL}/blob/v0.2.0/CHANGELOG.md"


@pytest.mark.parametrize("url", ["", URL])
def test_no_link_of_the_readme_leads_nowhere(url: str) -> None:
    page = page_of((ROOT / "README.md").read_text(encoding="utf-8"), url, "0.2.0")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [one for one in targets if "://" not in one] == []
    assert bool(targets) == bool(url)


def test_an_address_that_is_none_stops_the_build() -> None:
    assert project_url(f" {URL}/ ") == URL
    for wrong in ("example.org/stagepost", "http://example.org/x", f"{URL}?tab=1", "https://"):
        with pytest.raises(ValueError, match="write an https address"):
            project_url(wrong)


def test_a_source_without_a_version_stops_the_build() -> None:
    assert version_of('a = 1\n__version__ = "0.2.0"\n') == "0.2.0"
    with pytest.raises(ValueError, match="__version__"):
        version_of("version = 1\n")
