"""The archive: copies of databases and of their change logs at another place, object by object.

places        where objects are: a folder; an object appears whole and durable, or not at all
bucket        the same in a bucket of S3
packing       an object compressed, and sealed if there is a key; and unpacked
sealing       encryption with the key of a file
segments      objects with entries of change logs, numbered
bases         objects with all rows of one database at one moment
index         what an archive holds: bases, segments, and the stretches that can be restored
merge         many small segments put together to one
prune         what is older than the retention, removed
redo          entries of a log applied to the file of a database
ownership     which data directory writes an archive
restoring     any moment: which write it ends with; databases and rules restored
verification  every object read, the newest moments restored, bases compared
archiver      writes the archive while the daemon serves
feeds         what the change logs of all databases give for the next segment
upkeep        bases, merging and retention while an archive is written
process       the processes of low priority: a base is made; merging and removal
"""
