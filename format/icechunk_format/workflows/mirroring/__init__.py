"""Copies a group into a Delta table of Parquet files, and keeps the copy at the branch's tip.

Delta tables are read and written with ``deltalake``; Parquet files are written with pyarrow from
the batches of ``dataset.reading``. What runs the tasks is not decided here.
"""
