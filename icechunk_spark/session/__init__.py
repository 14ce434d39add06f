"""What a Spark session needs for our jobs: settings of batches, errors that read well."""
