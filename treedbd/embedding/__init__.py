"""Databases in process, for programs that embed the service.

database   one database, as coroutines: get, put, patch, push, remove, transaction, watch
requests   the calls of a program as requests, its values, and waiting in its coroutines
watch      what a program watches: the events that wait, and their iterator
"""
