"""Who sends a request: tokens, keys, providers.

identity    what a token says of its bearer
verifier    from a token to an identity, in all projects
jwt         JSON Web Tokens and keys
providers   OpenID providers and their keys
fetch       small documents over verified TLS
"""
