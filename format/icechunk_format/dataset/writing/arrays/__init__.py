"""Writes arrays from blocks of stored values, and commits them together.

``blocks.ArrayBlocks`` stores blocks as chunks on an executor and returns a receipt;
``commit.commit_arrays`` commits ``commit.ArraysCommit`` and the receipts on the driver.
``dataset.writing.prepare.open_destination`` opens the repository to write to.
"""
