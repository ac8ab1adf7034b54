"""How the validators of one session agree on one chain of blocks: Simplex, as a core without network and disk."""
