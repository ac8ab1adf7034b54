"""CIP-0137: the signed message and every mini-protocol of a DMQ network. No I/O."""
