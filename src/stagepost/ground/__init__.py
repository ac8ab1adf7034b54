"""Ground: the lowest rooms, which import nothing from the rooms above them."""
