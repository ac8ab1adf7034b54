"""Bytes to plain values and back: CBOR, TL, multiplexer segments, layouts. No I/O."""
