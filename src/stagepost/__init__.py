"""Stagepost carries a message from a program's hand to finality, and proves every step."""

__version__ = "0.2.0"
