"""Tables as files, and their readers."""
