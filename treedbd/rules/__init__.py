"""The language of security rules: parsed, checked, compiled, evaluated.

document    rules documents: a dialect of JSON with positions, and its errors
grammar     the grammar of expressions, their syntax tree, and the errors in them
typecheck   the static type of an expression, or the error in it
regex       the language's regular expressions, matched in linear time
operators   operators and methods at run time, and the snapshots that they read
compile     from a checked syntax tree to closures
rights      what rules tell without data: evaluation of what is not known yet
context     what one evaluation reads, may read, and keeps
evaluate    which rules run for a read or a write, in which order, and their verdict
ruleset     the rules of a project, built of their text
"""
