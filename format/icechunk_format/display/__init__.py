"""Shows values to people: texts for terminals, HTML for notebooks.

=====================  =============================================================================
module                 what is in it
=====================  =============================================================================
``lazily``             gives a class its ``__repr__`` and ``_repr_html_``, which import the others
``plain_text``         makes text from a repository safe to show; sizes, times and counts
``markup``             makes text from a repository safe in HTML; the parts that all pages share
``lanes``              places versions beside one another, so that a graph can be drawn
``history``            a repository: its versions as a graph, with branches and tags
``changes``            what changed between two versions
``groups``             a dataset, and all groups and arrays of a snapshot
``arrays``             one array: dimensions, type, chunks, codecs, sizes
``chunk_picture``      an array and its chunks as a picture
``records``            results and plans: names and values
=====================  =============================================================================

Rules of this package
---------------------
1. What is shown is untrusted: texts reach HTML only through ``markup.escaped``.
2. What is shown is bounded in lines and in characters, and says how much was left out.
3. No file is read, with one exception: a repository's HTML asks for the ``repo`` object, once.
4. Nothing here raises: what cannot be shown is shown as what is wrong with it.
5. Values come as they are, without their types: the layers that define them are above this one.
"""
