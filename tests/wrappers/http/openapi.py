"""Checks an OpenAPI document as such, and answers against it.

    python3 openapi.py DOCUMENT ANSWERS

ANSWERS is JSON: `codes` has each problem's code with its status, `keys` is a list of [header's text, whether it's accepted],
and `answers` is a list of [name, status, {header: value}, body]. Prints each fault, and exits with 1 if there's any.
"""

import json
import sys

import yaml
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

document = yaml.safe_load(open(sys.argv[1]))
faults = [f"the document: {error.message}" for error in OpenAPIV31SpecValidator(document).iter_errors()]


def resolved(part):
    """Follows a reference to a component."""
    while "$ref" in part:
        found = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def wrong(value, schema):
    """The faults of a value. The schema's references point into the document."""
    validator = OAS31Validator({**schema, "components": document["components"]})
    return [error.message for error in validator.iter_errors(value)]


operation = document["paths"]["/payments"]["post"]
told = json.load(open(sys.argv[2]))
key = resolved(operation["parameters"][0])
for text, is_accepted in told["keys"]:
    if bool(wrong(text, key["schema"])) == is_accepted:
        faults.append(f"the key {text!r}: accepted is {is_accepted}")

codes = {}
for status, response in operation["responses"].items():
    problem = resolved(response)["content"].get("application/problem+json")
    if problem:
        code = problem["schema"]["allOf"][1]["properties"]["code"]
        codes |= {name: status for name in code.get("enum", [code.get("const")])}
if codes != told["codes"]:
    faults.append(f"the codes are {codes}, not {told['codes']}")

seen = set()
for name, status, headers, body in told["answers"]:
    if str(status) not in operation["responses"]:
        faults.append(f"{name}: the status {status} isn't in the document")
        continue
    seen.add(str(status))
    response = resolved(operation["responses"][str(status)])
    described = {header.lower(): resolved(of) for header, of in response.get("headers", {}).items()}
    for header, of in described.items():
        if header not in headers:
            if of.get("required"):
                faults.append(f"{name}: the header {header} is missing")
            continue
        value = headers[header]
        value = int(value) if of["schema"]["type"] == "integer" else value
        faults += [f"{name}: {header}: {fault}" for fault in wrong(value, of["schema"])]
    for header in {"idempotent-replayed", "retry-after", "link"} & headers.keys():
        if header not in described:
            faults.append(f"{name}: the header {header} isn't in the document")
    media = response["content"].get(headers["content-type"])
    if media is None:
        faults.append(f"{name}: the media type {headers['content-type']} isn't in the document")
        continue
    faults += [f"{name}: {fault}" for fault in wrong(json.loads(body), media["schema"])]

faults += [f"no answer with the status {status}" for status in operation["responses"].keys() - seen]
print("\n".join(faults))
sys.exit(bool(faults))
