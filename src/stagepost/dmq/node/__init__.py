"""The DMQ node: connections, intake, store and status, assembled from the rules of this room."""
