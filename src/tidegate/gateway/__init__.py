"""The data path: from a client's request to a replica's answer."""
