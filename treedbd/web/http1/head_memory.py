"""What is remembered of a head, for the requests that repeat it byte for byte."""

from __future__ import annotations


class HeadMemory:
    """What the resource remembers for requests of one connection with one head.

    Attributes:
        question: what the resource made of the head, of any type; None at first.
        forwarded: what trusted proxies say in it (`ForwardedRequest`), None until that is read.
        logged: what the access log made of it, likewise.
        identity: who has opened a stream with it, likewise.

    """

    question: object = None
    forwarded: object = None
    logged: object = None
    identity: object = None
