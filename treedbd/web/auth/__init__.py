"""Who sends a request: tokens, the keys that verify them, and identities.

identity    what the claims of a token say of a caller; the override of `auth`; admins
verifier    from a token, or the application's own login, to an identity, in each project
jwt         JSON Web Tokens, JSON Web Keys and secrets: parsed, verified, minted
providers   OpenID providers and their keys: fetched, cached, refreshed
fetch       small documents over verified TLS; CA certificates
"""
