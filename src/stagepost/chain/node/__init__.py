"""The embedded chain on links and disk: agreement, final blocks for everybody, one validator of all its sessions."""
