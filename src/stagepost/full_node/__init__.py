"""Full node of REMP: takes external messages, sends them to validators, and publishes their statuses."""
