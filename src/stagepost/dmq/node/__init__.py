"""Assembly of core and runtime into programs; nothing else lives here."""
