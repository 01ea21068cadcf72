"""Databases in process, for programs that embed the service.

database   a database by coroutines, without HTTP
requests   requests of the program itself
values     values between a program and the tree, and waiting
watch      what a program watches, as an iterator
"""
