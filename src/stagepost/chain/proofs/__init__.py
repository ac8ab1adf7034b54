"""Proofs of a message's end: their form, the rules by which they are checked, and their making."""
