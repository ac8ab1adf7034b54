"""A signed block graph that members build together: every block names the blocks that its author had seen."""
