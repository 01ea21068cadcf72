"""`treedb shell`, which walks through a database.

shell      the command: where it begins, scripts, what Tab completes
prompt     the prompt at a terminal, and its history, with prompt_toolkit
commands   the commands of the shell: lines, arguments, the session, output
"""
