"""Topics: append-only logs with offsets, on disk, in memory or at a broker, behind one interface."""
