"""Connections of the nodes that run here, for the API and the page."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources, UnreadableSource


def peers_object(sources: Sources) -> list[dict[str, Any]]:
    nodes = sources.nodes()
    if isinstance(nodes, Unreadable):
        raise UnreadableSource(nodes)
    if isinstance(nodes, Nothing):
        return []
    found: list[dict[str, Any]] = []
    for seen in nodes:
        if isinstance(seen.status, Unreadable):
            found.append(
                {"node": str(seen.folder), "state": "unreadable", "reason": seen.status.text, "peers": []}
            )
        else:
            peers = [msgspec.to_builtins(peer) for peer in seen.status.peers]
            found.append({"node": str(seen.folder), "state": "read", "reason": None, "peers": peers})
    return found
