"""Clocks, virtual time, timers and calls at the end of a turn of the event loop."""
