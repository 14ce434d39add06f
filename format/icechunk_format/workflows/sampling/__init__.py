"""Samples arrays at points: finds positions by labels, gathers their values, interpolates."""
