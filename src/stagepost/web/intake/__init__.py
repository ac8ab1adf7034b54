"""The HTTP intake of a full node."""
