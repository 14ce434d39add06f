"""Deletes labels of a dimension, or the values of a region."""
