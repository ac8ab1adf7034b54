"""Configuration: settings, files, and their faults."""
