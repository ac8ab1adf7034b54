"""Transports of reliable delivery: over a DMQ node, and in memory."""
