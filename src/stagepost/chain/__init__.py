"""The embedded chain: accounts, shards, the masterchain, and the agreement that makes their blocks final."""
