"""The validators' catchain-backed message queue."""
