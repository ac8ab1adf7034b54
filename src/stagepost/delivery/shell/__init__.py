"""Reliable delivery on real clocks, disks and networks."""
