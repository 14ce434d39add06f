"""Objects as files of a local folder."""
