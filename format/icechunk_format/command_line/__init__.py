"""The command ``icechunk-spark``, for people at a terminal and for scripts.

======================  ============================================================================
module                  what is in it
======================  ============================================================================
``entry``               the process: arguments in, exit code out, errors as one line
``app``                 the list of commands
``arguments``           what commands take: repository, options, version, ages
``screen``              where output goes: people, scripts, progress, questions
``plain_text``          text from a repository, made safe to show; sizes, times and counts
``documents``           the keys of what ``--json`` prints
``..._commands``        commands: arguments, and which functions of the library answer them
``history_reading``     what is read about versions, as ``--json`` prints it
``..._view``            how answers look
======================  ============================================================================

Rules of this package
---------------------
1. The command is a thin skin: what it does is a function of the library that a script can call.
2. Starting is fast: ``entry``, ``app`` and the ``_commands`` import nothing that reads
   repositories. A command imports that when it runs, which is the one exception to imports at the
   top of a module.
3. Texts from a repository (messages, names, attributes) are untrusted. They reach a terminal only
   through ``plain_text.safe``, and never as markup.
4. Answers go to stdout; progress, questions and errors to stderr. With ``--json`` stdout is one
   JSON document and nothing else.
5. Nothing is deleted, and no history rewritten, before a yes.
"""
