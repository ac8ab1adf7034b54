"""Validators and full nodes on real links and disks: the shell around `stagepost.catchain` and `stagepost.remp`."""
