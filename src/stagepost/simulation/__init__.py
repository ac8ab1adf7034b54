"""Whole networks in one process and in virtual time: production nodes, a simulated network, faults from one seed."""
