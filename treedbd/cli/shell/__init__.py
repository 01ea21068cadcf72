"""The interactive shell.

shell      the shell at a terminal: prompt, history, completion
commands   its commands
"""
