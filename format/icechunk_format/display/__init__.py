"""Shows values to people: plain text for terminals, HTML for notebooks.

=====================  =============================================================================
module                 content
=====================  =============================================================================
``lazily``             gives a class its ``__repr__`` and ``_repr_html_``, which import the others
``plain_text``         makes strings from a repository safe to show; sizes, times and counts
``markup``             makes strings from a repository safe in HTML; the parts that pages share
``history``            a repository as a graph of snapshots, branches and tags; changes
``groups``             a dataset, and all groups and arrays of a snapshot
``arrays``             one array: dimensions, type, chunks, codecs, sizes
``chunk_picture``      an array and its chunks as a picture
``records``            results and plans: names and values
=====================  =============================================================================

Rules of this package
---------------------
1. Values are untrusted: strings enter HTML only through ``markup.escaped``.
2. Output is bounded in lines and in characters, and states how much was left out.
3. No file is read, except the ``repo`` object, once, for a repository's HTML.
4. Nothing raises: a value that cannot be shown is replaced by its error.
5. Values have no static types, which higher layers define.
"""
