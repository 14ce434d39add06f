"""Reads the metadata tables: snapshots, refs, groups, variables, manifests, chunks and others."""
