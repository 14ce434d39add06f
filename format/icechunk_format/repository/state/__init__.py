"""Changes branches, tags and settings; one function replaces the ``repo`` object."""
