"""Streams: Server-Sent Events of what is written.

stream     one stream, from its request to its end: resumed, sent, revoked, `onDisconnect`
registry   the open streams: limits, keep-alives, slow readers, tokens that expire
frames     events printed as frames, and the identifiers by which a stream is resumed
"""
