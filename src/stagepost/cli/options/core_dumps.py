"""Commands that hold a secret in memory leave no image of it on disk."""

from __future__ import annotations


def disable_core_dumps() -> None:
    """A crash while a secret is in memory must not write it to disk."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
