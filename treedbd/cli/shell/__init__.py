"""`treedb shell`, which walks through a database.

shell      the command: lines, arguments, the session, what each command does, Tab, scripts
prompt     the prompt at a terminal, and its history, with prompt_toolkit
"""
