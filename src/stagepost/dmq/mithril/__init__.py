"""Mithril on DMQ: bodies of its messages, stake by epoch, and the figures of an observatory."""
