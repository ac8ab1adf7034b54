"""The life line of a message, for people and programs."""
