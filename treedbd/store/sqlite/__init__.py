"""The embedded engine: one SQLite file for each database.

engine    the engine of one file: created, opened and closed; its reserve on the disk
reader    the reading connections, and rows read over them at one moment
writer    the writing connection: transactions, checkpoints, room on the disk, a failed sync
file      the file: created, recognised, connected to; page check sums; what errors of SQLite mean
history   whether changes are missing that the file once held: the mark, frames of the log
convert   files and rows of older formats brought to the present one
shared    the lock of one file between processes, and whether others have committed
check     damage looked for in a whole file, at once or while it is in use
copy      a copy of a file at one moment, for backups
"""
