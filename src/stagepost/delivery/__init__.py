"""Reliable publishing on top of a message network."""
