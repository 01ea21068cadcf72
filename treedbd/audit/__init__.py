"""The audit: who wrote what, when, from where and by which token, in files apart from the data.

series     the files of one series: appended, each begun with the digest of the one before, removed
           by age
chain      whether the files of a series are as they were written, and what their lines say
lines      what a line says
search     lines by time, path, user and database, a page at a time
accesses   denied writes and reads of admins, recorded by the process that answers them
auditor    the writes, read in the change logs by one of the processes
audit      both of a process
"""
