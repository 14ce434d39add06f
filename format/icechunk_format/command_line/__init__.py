"""The command ``icechunk-spark``, for people at a terminal and for scripts.

=======================  ===========================================================================
module                   what is in it
=======================  ===========================================================================
``entry``                runs a command: arguments in, exit code out, errors as one line
``app``                  the list of commands
``call``                 a run of a command: its repository, its screen, plan and question
``arguments``            arguments that commands share: repository, options, version, ages
``exit_codes``           exit codes and their meanings
``commands/``            the commands; each calls functions of the library
``views/screen``         prints answers, progress and questions
``views/documents``      the keys of the documents that ``--json`` prints
``views/tree_view``      groups and arrays with their sizes
``views/history/``       versions: reads them for ``--json``, draws the graph, prints them
=======================  ===========================================================================

Rules of this package
---------------------
1. Commands only call functions of the library, which a script can call as well.
2. Starting is fast: ``entry``, ``app`` and ``commands/`` import nothing that reads repositories. A
   command imports that when it runs, which is the one exception to imports at the top of a module.
3. Texts from a repository (messages, names, attributes) are untrusted. They reach a terminal only
   through ``display.plain_text.safe``, and never as markup.
4. Answers go to stdout; progress, questions and errors to stderr. With ``--json`` stdout is one
   JSON document and nothing else.
5. Nothing is deleted, and no history rewritten, before a yes.
"""
