"""Runs workflows on arrays: sampling, zonal statistics, change feeds, Delta copies, archives."""
