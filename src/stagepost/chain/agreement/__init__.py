"""Agreement of the validators of one session on one chain of blocks: Simplex, as a core without network and
disk.
"""
