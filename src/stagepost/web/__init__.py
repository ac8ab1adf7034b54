"""The dashboard and the HTTP intake."""
