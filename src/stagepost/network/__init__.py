"""Founding, joining and changing a network of validators and full nodes, by files that operators exchange."""
