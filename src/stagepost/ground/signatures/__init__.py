"""Signature checks on the loop and in processes beside it."""
