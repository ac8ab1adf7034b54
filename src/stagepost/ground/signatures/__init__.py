"""Signature checks on the event loop and in processes beside it."""
