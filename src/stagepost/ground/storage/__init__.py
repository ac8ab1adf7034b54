"""Durable tables: SQLite files with checksummed rows and one group writer."""
