"""Whole networks on one machine."""
