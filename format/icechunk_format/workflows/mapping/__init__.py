"""Maps a function over labelled blocks of a group: reads blocks, places and writes results."""
