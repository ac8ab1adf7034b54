"""Clocks, virtual time, and what happens at the end of a turn of the loop."""
