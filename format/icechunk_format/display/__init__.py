"""Displays values: plain text for terminals, HTML for notebooks.

=====================  =============================================================================
module                 content
=====================  =============================================================================
``lazily``             ``__repr__`` and ``_repr_html_`` that import the other modules on first use
``plain_text``         escapes strings from a repository; formats sizes, times and counts
``markup``             escapes strings from a repository in HTML; the shared parts of pages
``history``            a repository as a graph of snapshots, branches and tags; differences
``groups``             a dataset, and all groups and arrays of a snapshot
``arrays``             one array: dimensions, type, chunks, codecs, sizes
``chunk_picture``      an array and its chunks as a picture
``records``            results and plans: names and values
=====================  =============================================================================

Rules of this package
---------------------
1. Values are untrusted: strings enter HTML only through ``markup.escaped``.
2. Output is bounded in lines and characters, and counts omitted items.
3. No I/O, except that a repository's HTML reads ``repo`` once.
4. Functions do not raise: a value that cannot be displayed is replaced by its error.
5. Values are typed ``Any``, since their classes are defined in higher layers.
"""
