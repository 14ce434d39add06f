"""Writes whole arrays from blocks of stored values, and commits them at once.

``blocks.ArrayBlocks`` stores blocks as chunks on an executor and returns a receipt;
``commit.commit_arrays`` commits ``commit.ArraysCommit`` and the receipts on the driver.
``prepare.open_destination`` in the room above finds the repository to write to.
"""
