"""The configuration: settings, endpoints, certificates, credentials.

settings      all settings, read from a file and from flags
values        readers of values, one for each kind
endpoints     endpoint strings, and names in the local network
certificate   certificates: loaded, reloaded, created
listening     ports opened, and what is served at them
credentials   secrets, providers and rules files of projects
"""
