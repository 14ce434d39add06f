"""Samples arrays at points: finds places by labels, gathers their values, interpolates."""
