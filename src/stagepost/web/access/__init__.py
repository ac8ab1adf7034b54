"""Who may use the web part, and how requests are guarded."""
