"""Protocols and lifecycles as data, and the referee that enforces them. No I/O."""
