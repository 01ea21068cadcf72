"""The configuration: settings, endpoints, certificates, credentials.

settings      all keys of the configuration, read from a file and from flags, and checked
values        readers of values, one for each kind; errors that name the key and the remedy
endpoints     endpoint strings parsed; names and addresses of this machine in its network
certificate   TLS contexts; certificates loaded, reloaded, created for development and `--lan`
listening     the ports of endpoints: opened, adopted, closed; errors of the start
hooks         the hooks of the configuration, with their secrets
credentials   secrets, providers and rules files of projects, loaded and reloaded
"""
