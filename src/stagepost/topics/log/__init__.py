"""The topic log in plain files."""
