"""Reads and changes arrays in jobs of many tasks: one folder for each workflow.

Samples, zonal statistics, changes and Delta copies read; deleting, merging, rechunking, mapping and
virtualizing commit.
"""
