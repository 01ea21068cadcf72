"""import and export: documents of any size.

importing   import
exporting   export
chunks      a document in parts: formats, parsing, places
transfer    parts sent to a daemon, and sent again
"""
