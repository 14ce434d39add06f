"""Creates, finds, upgrades and restores whole repositories, and expires their snapshots."""
