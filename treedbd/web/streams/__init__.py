"""Streams: Server-Sent Events of what is written.

stream     one stream: asked for, opened, sent, ended
registry   the open streams: limits, keep-alives, expiry
frames     events as bytes, and the identifiers by which a stream is resumed
"""
