"""PostgreSQL as the store of a cluster, in SQL; knows no Twisted.

engine       an engine over PostgreSQL and a local copy
commits      commits that compare and append, and the rows that they touched
connection   connections with deadlines, their settings, and prepared statements
schema       the tables, created and migrated
fetching     what a copy lacks, read at one moment, and compared
cluster      what daemons share: names, rules, leases, the tail, the read index
status       what operators ask, and what is trimmed
moving       what a move of all databases changes
"""
