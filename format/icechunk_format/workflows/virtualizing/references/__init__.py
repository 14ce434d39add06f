"""Plans arrays of the repository, with their values or references, and writes manifests."""
