"""Statistics of zones as Spark jobs: zones in, cover, sums, and rows of the result."""
