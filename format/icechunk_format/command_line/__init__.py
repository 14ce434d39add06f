"""The command ``icechunk-spark``, for people at a terminal and for scripts.

=======================  ===========================================================================
module                   content
=======================  ===========================================================================
``entry``                runs a command: arguments in, exit code out, errors as one line
``app``                  the list of commands
``call``                 a run of a command: its repository, its screen, plan and question
``arguments``            arguments that commands share: repository, options, snapshot, ages
``exit_codes``           exit codes and their meanings
``commands/``            the commands; each calls functions of the library
``views/reading``        snapshots, nodes, changes and operations as documents
``views/documents``      the keys of the documents that ``--json`` prints
``views/history``        prints the log with its graph, snapshots, changes and operations
``views/tree``           prints groups and arrays with their sizes
``views/screen``         prints output, progress and questions
=======================  ===========================================================================

Rules of this package
---------------------
1. Commands call only functions of the library that scripts can call as well.
2. Starting is fast: ``entry``, ``app`` and ``commands/`` import nothing that reads repositories. A
   command imports that when it runs, the only exception to imports at the top of a module.
3. Strings from a repository (messages, names, attributes) are untrusted. They reach a terminal only
   through ``display.plain_text.safe``, and never as markup.
4. Output is on stdout; progress, questions and errors are on stderr. With ``--json``, stdout is one
   JSON document.
5. Nothing is deleted, and no history rewritten, without a confirmation.
"""
