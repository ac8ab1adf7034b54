"""Topics of another machine."""
