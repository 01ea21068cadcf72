"""The language of security rules: parsed, checked, compiled, evaluated.

document    rules documents: a dialect of JSON, parsed with positions, and the errors about them
grammar     expressions: their syntax tree, the tables of types, the parser, errors and remedies
regex       the language's own regular expressions, matched in linear time
typecheck   the static type of an expression, or the error in it
context     the circumstances of a request, its budget, and the views through which rules read
compile     the compiler from a checked syntax tree to closures; the operators that these call
partial     partial evaluation: whether a rule can be true, known before data is read
volatile    which nodes the rules keep in memory alone, and how a write divides at them
evaluate    which rules run for a read or a write, in which order; their verdict, and its JSON
expiry      when nodes go: the `.ttl` of a path, and the time that it yields
ruleset     the rules of a project: built from a document, evaluated for each request, explained
"""
