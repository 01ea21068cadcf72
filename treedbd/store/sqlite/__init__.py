"""The embedded engine: one SQLite file for each database.

engine    the engine, with its readers and its reserve on the disk
reader    rows read over a connection, at one moment
writer    the writing connection: transactions, space, checkpoints, failure
file      the file: created, recognised, connected to; what errors of SQLite mean
convert   files of older formats
history   whether the file has gone back in time, and its write-ahead log as a whole
shared    a file that several processes have open: write lock and news
check     damage, looked for in a whole file
copy      a copy of a file at one moment
"""
