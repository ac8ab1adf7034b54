"""Topics: append-only logs with offsets, on disk or in memory, behind one interface that a broker can stand behind as well."""
