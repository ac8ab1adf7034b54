"""Authenticated links between full nodes, validators and members of sessions."""
