"""Reads boxes of arrays: finds, fetches and decodes their chunks."""
