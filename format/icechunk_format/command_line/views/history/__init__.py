"""How history looks: what is read of it, its graph, and its lines."""
