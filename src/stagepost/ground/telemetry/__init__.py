"""Logs, metrics and the HTTP server of a node's status."""
