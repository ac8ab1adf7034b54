"""Exit codes of every command but `check`, whose codes are those that monitors expect."""

DONE = 0
NOT_THAT_OUTCOME = 1
"""The command was carried out, and what it was asked for has not come."""
USAGE = 2
UNREACHABLE = 3
"""Nobody could be reached, or a disk refused."""
NOT_KNOWN_YET = 4
"""Time ran out before the end of the message was known: neither a yes nor a no."""
INTERRUPTED = 130
