"""`treedb import` and `treedb export`: documents of any size.

importing   import: validating a file, writing it, resuming after a break
exporting   export: downloading a document, the unfinished file, resuming after a break
chunks      a file as parts of a document: compression, formats, parts
transfer    shared by both: options, progress, repeated requests, parts that are sent
"""
