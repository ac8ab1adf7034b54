"""Ed25519, Sum-KES, operational certificates and hashes, with the acceptance rules of Cardano nodes. No I/O."""
