"""Key files of pools, and the signer of messages."""
