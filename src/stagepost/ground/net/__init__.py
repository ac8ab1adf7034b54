"""Connections: sockets, multiplexer, handshake and conversations. This room moves bytes and knows no protocol
above it."""
