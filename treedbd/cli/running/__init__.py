"""`treedb run`: a command is run for each event of a hook.

command     the command line, and the loop that starts commands and waits for them
window      the events that are not done: their order, which may be started, what is done
place       the file with what is done, which one run uses at a time; events that were given up
children    the commands under way: environment, input, time-out, their process groups
link        the connection to the daemon: events are read in one thread, reported done in another
"""
