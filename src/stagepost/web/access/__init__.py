"""Access to the web part: token, sessions of browsers, limits and headers."""
