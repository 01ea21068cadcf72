"""What schemathesis generates besides what the schemas say: requests that go together.

It loads this module by its name, from the environment (`openapi_trial`). By the schemas alone most
queries are errors, because their parameters do not fit each other, and most paths are empty.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, HookContext

PARAMETERS = "TREEDB_TRIAL_PARAMETERS"
"""The environment variable with the parameters, as JSON, that each request has."""

_FIXED: dict[str, str] = json.loads(os.environ.get(PARAMETERS, "{}"))
_SHORT = re.compile(r"[0-9]+ms|0*[0-9]s", re.ASCII)
_PATH_KEY = re.compile(r"\{(\w+)\}")
_NULL_TAG = '"74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"'
_TRUE = st.just("true")

_keys = st.sampled_from(["a", "b", "0", "1", "-7", "ü", "a b", "x"])
_scalars = st.none() | st.booleans() | st.integers(-3, 50) | st.text(max_size=3)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.builds(lambda value: {".value": value, ".priority": 1}, inner)
        | st.just({".sv": "timestamp"})
        | st.just({".sv": {"increment": 2}})
    ),
    max_leaves=8,
)
_patches = st.dictionaries(
    st.lists(_keys, min_size=1, max_size=2).map("/".join), _values, max_size=3
)
_rules = st.fixed_dictionaries(
    {".read": st.sampled_from([True, False, "auth != null"])},
    optional={
        ".write": st.just("newData.exists()"),
        "a": st.just({".validate": "newData.isString()", ".indexOn": ["b"]}),
    },
).map(lambda rules: {"rules": rules})

_text = _scalars.map(json.dumps)
_orders = st.sampled_from(['"$key"', '"$value"', '"$priority"', '"a"', '"a/b"'])
_limits = st.integers(1, 4).map(str)
_where = st.dictionaries(
    st.sampled_from(["a", "$key", "$value", "b/a"]),
    _scalars
    | st.dictionaries(st.sampled_from(["==", "<", ">=", "startsWith"]), _scalars, min_size=1),
    min_size=1,
    max_size=2,
).map(json.dumps)
_queries = st.one_of(
    st.fixed_dictionaries(
        {"orderBy": _orders},
        optional={"limitToFirst": _limits, "startAt": _text, "endBefore": _text},
    ),
    st.fixed_dictionaries({"orderBy": _orders, "limitToLast": _limits}, optional={"where": _where}),
    st.fixed_dictionaries({"orderBy": _orders, "equalTo": _text}),
    st.fixed_dictionaries({"where": _where}, optional={"limitToFirst": _limits}),
    st.fixed_dictionaries(
        {"shallow": _TRUE}, optional={"v": st.just("2"), "limitToFirst": _limits}
    ),
    st.fixed_dictionaries(
        {"describe": _TRUE}, optional={"at": st.just("1"), "limitToFirst": _limits}
    ),
    st.fixed_dictionaries({"format": st.just("export")}, optional={"print": st.just("pretty")}),
    st.fixed_dictionaries(
        {}, optional={"callback": st.just("show"), "download": st.just("a.json")}
    ),
    st.fixed_dictionaries({}, optional={"print": st.sampled_from(["pretty", "silent"])}),
)
_headers = st.fixed_dictionaries(
    {},
    optional={
        "X-TreeDB-ETag": _TRUE,
        "If-Match": st.sampled_from(["*", _NULL_TAG]),
        "If-None-Match": st.sampled_from(["*", _NULL_TAG]),
        "Accept-Encoding": st.sampled_from(["gzip", "identity", "gzip;q=0.5, *;q=0"]),
        "X-HTTP-Method-Override": st.sampled_from(["GET", "PUT", "PATCH", "DELETE"]),
    },
)


@schemathesis.hook
def before_generate_path_parameters(context: HookContext, strategy: Any) -> Any:
    """Let half of the requests be for few places, so that they meet what others have written."""
    assert context.operation is not None
    names = _PATH_KEY.findall(context.operation.path)
    return st.one_of(strategy, st.fixed_dictionaries(dict.fromkeys(names, _keys)))


@schemathesis.hook
def before_generate_query(context: HookContext, strategy: Any) -> Any:
    """Let half of the reads have parameters that fit each other."""
    operation = context.operation
    if operation is None or operation.method.upper() not in ("GET", "HEAD"):
        return strategy
    return st.one_of(strategy, _queries) if "key" in operation.path else strategy


@schemathesis.hook
def before_generate_headers(_: HookContext, strategy: Any) -> Any:
    """Let half of the requests have headers that mean something."""
    return st.one_of(strategy, _headers)


@schemathesis.hook
def before_generate_body(context: HookContext, strategy: Any) -> Any:
    """Let half of the bodies be such as clients write."""
    operation = context.operation
    assert operation is not None
    if operation.path.startswith("/.settings/"):
        return st.one_of(strategy, _rules) if "rules" in operation.path else strategy
    return st.one_of(strategy, _patches if operation.method.upper() == "PATCH" else _values)


@schemathesis.hook
def before_call(_: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Send the parameters of this run, and no time-out that may pass: 504 is a server error."""
    query = dict(case.query or {})
    if _SHORT.fullmatch(str(query.get("timeout", ""))):
        del query["timeout"]
    case.query = {**query, **_FIXED}
