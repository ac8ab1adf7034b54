"""Where Chromium is, if there is one."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str | None:
    """Of the system's own; None leaves it to the driver to find the one that came with it."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)
