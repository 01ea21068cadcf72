"""A standby: a second daemon that follows the change logs of a first one, and may take its place.

term      which of several data directories has the present history: its durable file
"""
