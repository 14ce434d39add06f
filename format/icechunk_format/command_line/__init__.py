"""Implements the command ``icechunk-spark``, for interactive use and for scripts.

=======================  ===========================================================================
module                   content
=======================  ===========================================================================
``entry``                runs a command: parses arguments, returns the exit code, prints errors
``app``                  the list of commands
``call``                 a run of a command: repository, screen, plan and confirmation
``arguments``            shared arguments: repository, options, snapshot, ages
``exit_codes``           exit codes and their meanings
``commands/``            the commands; each calls functions of the library
``views/reading``        snapshots, nodes, changes and operations as documents
``views/documents``      the keys of the documents that ``--json`` prints
``views/history``        prints the log with its graph, snapshots, changes and operations
``views/tree``           prints groups and arrays with their sizes
``views/screen``         prints output, progress and confirmations
=======================  ===========================================================================

Rules of this package
---------------------
1. Commands call only public functions of the library.
2. Startup is fast: ``entry``, ``app`` and ``commands/`` do not import code that reads repositories.
   A command imports it when it runs, inside of its function.
3. Strings from a repository (messages, names, attributes) are untrusted. They reach a terminal only
   through ``display.plain_text.safe``, and never as markup.
4. Output is on stdout; progress, confirmations and errors are on stderr. With ``--json``, stdout is
   one JSON document.
5. Deleting files and rewriting history require a confirmation.
"""
