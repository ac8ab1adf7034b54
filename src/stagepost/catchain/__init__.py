"""A signed block graph that members build together: every block names what its author had seen."""
