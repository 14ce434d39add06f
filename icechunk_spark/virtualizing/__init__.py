"""Makes archives of files one dataset of virtual references, with Spark."""
