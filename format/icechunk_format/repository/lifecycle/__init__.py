"""What happens to a whole repository: creation, discovery, expiry, restoration, upgrade."""
