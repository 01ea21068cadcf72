"""Who sends a request: tokens, the keys that verify them, and identities.

identity    what the claims of a token say of a caller; the override of `auth`; admins
verifier    which tokens and keys a project trusts; the application's own login; identities
jwt         JSON Web Tokens, Keys and files of secrets: parsed, signatures checked, minted
minting     tokens that the daemon makes for an admin: what may be requested, and renewed
providers   OpenID providers and their keys: fetched, cached, refreshed
fetch       small documents over verified TLS; CA certificates
"""
