"""Small files, data folders, locks, and values as people write them."""
