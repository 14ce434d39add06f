"""Collects garbage: finds objects that no snapshot needs, and deletes them."""
