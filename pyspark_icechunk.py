"""The module that Spark's auto-lookup finds: top-level, named ``pyspark_*``, with a ``DefaultSource``.

Spark imports it in a Python worker at the first lookup of any source, so it stays light.
"""
