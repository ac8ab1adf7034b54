"""Ground: the rooms that know nobody above them."""
