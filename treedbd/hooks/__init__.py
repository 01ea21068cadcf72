"""Hooks: the events of the change logs, sent to URLs by one of the processes, or read by programs.

message     an event as receivers see it, and its signature
addresses   the names of receivers, resolved to addresses that may be called
client      one POST: its connection, its limits, and how it ended
letters     events that wait or are dead, and the state of each hook, as rows of the database
delivery    the events of one hook: a window of them, their order, and when each is sent again
deliverer   the hooks of all databases, in the process that is elected
feed        the events of a hook that a program reads: its reader, its place, batches in slices
functions   events as functions of Firebase receive them
triggers    functions of Firebase that register at the database, as hooks
"""
