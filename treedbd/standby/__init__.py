"""A standby: a second daemon that follows the change logs of a first one, and may take its place.

term          which of several data directories has the present history: its durable file
office        the term of a running daemon, and what it does when it was superseded
positions     where standbys are in the change logs of a first: their cursors
sender        what a first sends its standbys: the logs of all databases of a project
bases         a base of one database as the response to a standby
base_process  the process that reads a base
standby       follows the first in all projects, says how old its data is, and is promoted
follower      one project: its stream is received, applied and acknowledged
replacement   the file of a database replaced by a base, whole or not at all
client        the requests of a standby to its first
"""
