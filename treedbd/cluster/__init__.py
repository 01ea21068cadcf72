"""Databases in PostgreSQL, served by several daemons.

service       the part of a daemon that belongs to PostgreSQL
files         the databases of a cluster, and their copies
replica       a daemon's part in one database
connections   PostgreSQL as one daemon uses it: connections, threads, shared questions
"""
