"""The layouts of rows: cells, summary, chunks, refs."""
