"""Transports of reliable delivery: over a DMQ node, over sockets, and in memory."""
