"""The validator, the grammars and what masks let through, against PyPI jsonschema and Python's re.

    grammar_differential.py JUDGE [--seed N] [--rounds N]

Random schemas of every keyword with random instances: the validator's verdict equals jsonschema's, so does that of the
grammar with members in any order, the grammar in schema order takes nothing invalid, and outputs sampled through masks
parse and are valid. Random regular expressions likewise. A short run by default; DEEPINFER_TEST_ALL=1 makes it long,
with 1,000 samples for each kind of schema."""
import argparse
import decimal
import json
import os
import random
import re
import subprocess
import sys

PACKAGES = ["jsonschema==4.26.0"]


def enter_environment():
    made = subprocess.run(["tools/test_venv.sh", "build/test-data/jsonschema-venv", *PACKAGES], capture_output=True,
                          text=True)
    if made.returncode:
        print(f"SKIPPED, NOTHING WAS CHECKED: {made.stderr.strip()}", file=sys.stderr)
        sys.exit(0)
    os.environ["DEEPINFER_DIFFERENTIAL"] = "1"
    os.execv(made.stdout.strip(), [made.stdout.strip(), "-B", __file__, *sys.argv[1:]])


if not os.environ.get("DEEPINFER_DIFFERENTIAL"):
    enter_environment()
import jsonschema  # noqa: E402

decimal.getcontext().prec = 200


class Judge:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        encoding="utf-8")

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request, ensure_ascii=True) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Beyond(Exception):
    """The reference cannot judge this text: a name occurs twice, a number is huge, or a date lies in the year 0000,
    which RFC 3339 has and Python's calendar has not."""


def exact_float(text):
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise Beyond from None
    if number.is_zero():
        return 0
    return int(number) if number.adjusted() < 400 and number == number.to_integral_value() else number


def distinct(pairs):
    if len({name for name, _ in pairs}) != len(pairs):
        raise Beyond
    return dict(pairs)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def parse(text):
    value = json.loads(text, parse_float=exact_float, object_pairs_hook=distinct)
    if any(re.match(r"0000-\d\d-\d\d", s) for s in strings(value)):
        raise Beyond
    return value


def for_reference(schema):
    """`$` of ECMA-262 is the very end of the text, which Python writes \\Z."""
    if isinstance(schema, list):
        return [for_reference(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            value = value.replace("$", r"\Z")
        elif key == "patternProperties":
            value = {name.replace("$", r"\Z"): for_reference(s) for name, s in value.items()}
        elif key not in ("const", "enum"):
            value = for_reference(value)
        out[key] = value
    return out


def reference(schema_text):
    schema = for_reference(parse(schema_text))
    draft7 = isinstance(schema, dict) and "draft-07" in str(schema.get("$schema"))
    kind = jsonschema.Draft7Validator if draft7 else jsonschema.Draft202012Validator
    return kind(schema, format_checker=jsonschema.FormatChecker(["ipv4", "date"]))


class Schemas:
    """Random schemas and instances that have a chance to meet."""
    NAMES = ["a", "b", "c", "foo", "x1"]
    PATTERNS = ["^a", "b$", "^[a-z]+$", "o", "^.{2}$", "x[0-9]", "^(a|b)*$", "^[^b]*$", "(ab|c)+", "^\\\\?\"?.$"]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.refs = False

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def root(self):
        self.refs = self.chance(45)
        schema = self.keywords(self.random.randint(1, 3))
        if self.refs:
            schema["$defs"] = {
                "d1": self.schema(2), "d2": self.schema(2), "d3": {"$anchor": "here", **self.keywords(1)}}
        newer = {"prefixItems", "dependentRequired", "unevaluatedItems", "unevaluatedProperties"}
        if self.chance(20) and not newer & set(re.findall(r"\w+", dumps(schema))):
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
            schema.pop("$ref", None)
            for definition in schema.get("$defs", {}).values():
                if isinstance(definition, dict):
                    definition.pop("$anchor", None)
            text = dumps(schema)
            if "#here" in text or "minContains" in text or "maxContains" in text or "dependentSchemas" in text:
                schema.pop("$schema")
        return schema

    def value(self, depth=3):
        k = self.random.randrange(100)
        if k < 8:
            return None
        if k < 18:
            return self.chance(50)
        if k < 40:
            return self.random.choice([
                0, 1, 2, 3, 5, -1, 10, -7, 100, decimal.Decimal("1.5"), decimal.Decimal("0.5"),
                decimal.Decimal("-0.25"), 12, 1000])
        if k < 60 or depth == 0:
            return self.random.choice([
                "", "a", "b", "ab", "abc", "foo", "x1", "é", '"q"', "zz\\z", "é\n", "127.0.0.1", "2024-02-29", "😀"])
        if k < 80:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(self.NAMES): self.value(depth - 1) for _ in range(self.random.randrange(5))}

    def mutate(self, value):
        if isinstance(value, dict) and value and self.chance(80):
            value = dict(value)
            name = self.random.choice(list(value))
            if self.chance(30):
                del value[name]
            else:
                value[name] = self.mutate(value[name])
            return value
        if isinstance(value, list) and value and self.chance(80):
            value = list(value)
            at = self.random.randrange(len(value))
            if self.chance(25):
                value.insert(at, value[self.random.randrange(len(value))])
            elif self.chance(30):
                del value[at]
            else:
                value[at] = self.mutate(value[at])
            return value
        return self.value(2)

    def schema(self, depth):
        if depth <= 0 or self.chance(6):
            return self.random.choice([
                True, False, {}, {"type": "string"}, {"type": "integer"}, {"const": self.value(1)}])
        return self.keywords(depth)

    def keywords(self, depth):
        out = {}
        for _ in range(self.random.randint(1, 4)):
            key = self.random.choice(self.KEYWORDS)
            if key == "$ref" and not self.refs:
                continue
            out[key] = self.argument(key, depth - 1)
            if key == "if":
                for branch in ("then", "else"):
                    if self.chance(70):
                        out[branch] = self.schema(depth - 1)
            if key == "contains":
                for bound in ("minContains", "maxContains"):
                    if self.chance(40):
                        out[bound] = self.random.randrange(3)
        return out

    def argument(self, key, depth):
        r = self.random
        sub = lambda: self.schema(depth)  # noqa: E731
        some = lambda least, most, make: [make() for _ in range(r.randint(least, most))]  # noqa: E731
        if key == "type":
            return r.choice([
                "null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"],
                ["object", "array"]])
        if key == "enum":
            values = []
            for v in some(1, 4, lambda: self.value(1)):
                if not any(type(v) is type(w) and v == w for w in values):
                    values.append(v)
            return values
        if key == "const":
            return self.value(1)
        if key in ("properties", "dependentSchemas"):
            return {r.choice(self.NAMES): sub() for _ in range(r.randint(1, 3))}
        if key == "patternProperties":
            return {r.choice(self.PATTERNS): sub() for _ in range(r.randint(1, 2))}
        if key == "required":
            return sorted({r.choice(self.NAMES) for _ in range(2)})
        if key == "dependentRequired":
            return {r.choice(self.NAMES): sorted({r.choice(self.NAMES) for _ in range(2)})}
        if key in ("additionalProperties", "unevaluatedProperties", "unevaluatedItems"):
            return False if self.chance(50) else sub()
        if key == "propertyNames":
            return r.choice([{"maxLength": 2}, {"pattern": "^[a-z]$"}, {"enum": ["a", "b", "foo"]},
                             {"not": {"const": "a"}}])
        if key == "uniqueItems":
            return self.chance(90)
        if key.endswith(("Properties", "Items")) and key[:3] in ("min", "max"):
            return r.randrange(4)
        if key.endswith("Length"):
            return r.randrange(5)
        if key == "pattern":
            return r.choice(self.PATTERNS)
        if key == "format":
            return r.choice(["ipv4", "date"])
        if key.endswith(("inimum", "aximum")):
            return r.choice([
                0, 1, -5, 10, decimal.Decimal("2.5"), decimal.Decimal("0.5"), decimal.Decimal("-0.25"), 100, 7])
        if key == "multipleOf":
            return r.choice([2, 3, decimal.Decimal("0.5"), 5, 10, decimal.Decimal("0.25"), decimal.Decimal("0.01")])
        if key in ("prefixItems", "allOf", "anyOf", "oneOf"):
            return some(1, 3, sub)
        if key == "$ref":
            return r.choice(["#/$defs/d1", "#/$defs/d2", "#here"])
        return sub()  # items, contains, not, if

    KEYWORDS = (
        "type type type type enum const properties properties properties required required additionalProperties "
        "patternProperties propertyNames minProperties maxProperties items items items prefixItems contains minItems "
        "maxItems uniqueItems uniqueItems minLength maxLength pattern format minimum maximum exclusiveMinimum "
        "exclusiveMaximum multipleOf allOf anyOf oneOf oneOf not if dependentRequired dependentSchemas "
        "unevaluatedProperties unevaluatedItems $ref $ref").split()


def dumps(value):
    """Compact JSON with exact decimals."""
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dumps(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


# One schema for each kind of thing that a grammar is made of; every sample must be valid.
KINDS = {
    "strings": {"type": "string", "minLength": 2, "maxLength": 9, "pattern": "^[a-zé😀\\\\\"]*$"},
    "formats": {
        "type": "array",
        "items": {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"}]},
        "maxItems": 3},
    "integers": {
        "type": "array", "items": {"type": "integer", "minimum": -17, "maximum": 123, "multipleOf": 3}, "maxItems": 4},
    "decimals": {
        "type": "array", "items": {"type": "number", "minimum": -1.25, "exclusiveMaximum": 30.5, "multipleOf": 0.25},
        "maxItems": 4},
    "enums": {"enum": ["a", 1, None, [1, {"b": 2}], {"c": [], "d": "é"}]},
    "objects": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b", "z"],
        "additionalProperties": {"type": "null"}, "maxProperties": 4},
    "patterns": {
        "type": "object", "patternProperties": {"^i_": {"type": "integer"}, "_s$": {"type": "string", "maxLength": 3}},
        "additionalProperties": False, "minProperties": 1, "maxProperties": 3},
    "names": {
        "type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "additionalProperties": {"type": "boolean"},
        "maxProperties": 3},
    "tuples": {
        "type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": {"type": "boolean"},
        "minItems": 1, "maxItems": 4},
    "contains": {
        "type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 1, "maxContains": 2,
        "maxItems": 5},
    "unique strings": {
        "type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True, "maxItems": 6},
    "unique numbers": {"type": "array", "items": {"type": "number"}, "uniqueItems": True, "maxItems": 6},
    "unique objects": {
        "type": "array", "items": {
            "type": "object", "properties": {"k": {"enum": [1, 2]}, "l": {"type": "boolean"}},
            "additionalProperties": False}, "uniqueItems": True, "maxItems": 9},
    "unions": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "string"}}, "required": ["t", "v"]},
            {"type": "object", "properties": {"t": {"const": "b"}, "v": {"type": "integer"}}, "required": ["t"]},
            {"type": "integer", "not": {"enum": [1, 2]}}]},
    "conditions": {
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "if": {"properties": {"a": {"const": True}}}, "then": {"required": ["b"]}, "else": {"properties": {"b": False}},
        "maxProperties": 2},
    "dependencies": {
        "type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "dependentRequired": {"a": ["c"]}, "dependentSchemas": {"b": {"properties": {"c": {"type": "integer"}}}},
        "additionalProperties": {"type": ["integer", "null"]}, "maxProperties": 3},
    "unevaluated": {
        "type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}],
        "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, True], "unevaluatedProperties": False},
    "recursion": {
        "$ref": "#/$defs/tree", "$defs": {
            "tree": {
                "type": "object", "properties": {
                    "v": {"type": "integer"}, "k": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}},
                "required": ["v"], "additionalProperties": False}}},
}


class Check:
    def __init__(self, judge):
        self.judge = judge
        self.failures = 0
        self.counts = {}

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    def fail(self, *what):
        self.failures += 1
        if self.failures <= 20:
            print("FAILED", *what, sep="\n  ", flush=True)

    def samples(self, name, answer, is_valid):
        got = answer["samples"]
        if isinstance(got, dict):
            return self.fail(name, f"sampling: {got['broken']} after {got['after']}")
        for text in got:
            try:
                if not is_valid(text):
                    self.fail(name, f"the mask let through: {text!r}")
            except (Beyond, decimal.InvalidOperation, decimal.Overflow):
                continue
            except ValueError as error:
                self.fail(name, f"no JSON ({error}): {text!r}")
            self.count("samples")

    def kind(self, name, schema, samples, seed):
        text = dumps(schema)
        checker = reference(text)
        answer = self.judge.ask(schema=text, texts=[], samples=samples, seed=seed)
        if "refused" in answer or isinstance(answer["in_order"], str):
            return self.fail(name, f"refused: {answer}")
        self.samples(name, answer, lambda t: checker.is_valid(parse(t)))

    def schema(self, seed):
        make = Schemas(seed)
        text = dumps(make.root())
        try:
            checker = reference(text)
            instances = [make.value() for _ in range(10)]
            answer = self.judge.ask(schema=text, texts=[], samples=6, seed=seed)
            if "refused" in answer:
                return self.count("schemas refused")
            if isinstance(answer["samples"], list):
                for sampled in answer["samples"]:
                    try:
                        instances += [parse(sampled), make.mutate(parse(sampled))]
                    except Beyond:
                        pass
            texts = [dumps(v) for v in instances if len(dumps(v)) < 2000]
            valid = [checker.is_valid(parse(t)) for t in texts]
        except (RecursionError, decimal.InvalidOperation, decimal.Overflow):
            return self.count("schemas beyond the reference")  # references in a circle, huge numbers
        judged = self.judge.ask(schema=text, texts=texts, samples=0, seed=0)
        where = f"seed {seed}: {text}"
        self.samples(where, answer, lambda t: checker.is_valid(parse(t)))
        self.count("schemas")
        for i, good in enumerate(valid):
            self.count("valid instances" if good else "invalid instances")
            if judged["validator"][i] != good:
                self.fail(where, f"validator says {judged['validator'][i]}: {texts[i]}")
            plain = not any(c in texts[i] for c in "eE") or not re.search(r"\d[eE]", texts[i])
            if isinstance(judged["any_order"], list) and judged["any_order"][i] != good and (plain or not good):
                self.fail(where, f"grammar in any order says {judged['any_order'][i]}: {texts[i]}")
            if isinstance(judged["in_order"], list) and judged["in_order"][i] and not good:
                self.fail(where, f"grammar in schema order takes: {texts[i]}")
        for kind in ("any_order", "in_order"):
            if isinstance(judged[kind], str):
                self.count("grammars refused")
                if "no valid document" in judged[kind] and any(valid):
                    self.fail(where, f"refused as unsatisfiable, but valid: {texts[valid.index(True)]}")

    def regex(self, seed):
        r = random.Random(seed)

        def atom(depth):
            k = r.randrange(10 if depth > 0 else 7)
            if k < 4:
                return r.choice(["a", "b", "c", "0", "é", r"\.", r"\n", r"\\", r"\u0062", r"\x63", "😀"])
            if k < 6:
                return r.choice([
                    "[ab]", "[^a]", "[a-c]", "[^b-z]", ".", "[.*]", r"[\n-]", "[é-😀]", r"[^ \t]", r"\d", r"\w",
                    r"[\W\d]"])
            if k < 7:
                return r.choice(["", "a", "(?:)"])
            return r.choice(["(", "(?:", "(?P<n%d>" % r.randrange(10**9)]) + alternatives(depth - 1) + ")"

        def piece(depth):
            part = atom(depth)
            if not part or r.randrange(10) < 6:
                return part
            if len(part) > 1 and part[0] not in "[(\\":
                return part
            return part + r.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?"])

        def alternatives(depth):
            word = lambda: "".join(piece(depth) for _ in range(r.randint(1, 4)))  # noqa: E731
            return "|".join(word() for _ in range(r.choice([1, 1, 1, 2, 3])))

        pattern = alternatives(2)
        if r.randrange(4) == 0:
            pattern = "^(?:" + pattern + ")$"
        texts = ["".join(r.choice("abc0é😀.\n\\-z ") for _ in range(r.randrange(7))) for _ in range(12)]
        ours = pattern.replace("(?P<", "(?<")
        peer = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
        answer = self.judge.ask(regex=ours, texts=texts, samples=6, seed=seed)
        if "refused" in answer:
            return self.fail(f"seed {seed}", f"refused {ours!r}: {answer['refused']}")
        self.count("regular expressions")
        for text, got in zip(texts, answer["accepted"]):
            if got != bool(peer.fullmatch(text)):
                self.fail(f"seed {seed}: {ours!r}", f"says {got}: {text!r}")
            self.count("texts that match" if got else "texts that do not match")
        self.samples(f"seed {seed}: {ours!r}", answer, lambda t: bool(peer.fullmatch(t)))


def main():
    everything = bool(os.environ.get("DEEPINFER_TEST_ALL"))
    arguments = argparse.ArgumentParser()
    arguments.add_argument("judge")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--rounds", type=int, default=6000 if everything else 250)
    a = arguments.parse_args()
    check = Check(Judge(a.judge))
    for i, (name, schema) in enumerate(KINDS.items()):
        check.kind(name, schema, 1200 if everything else 25, a.seed + i)
    for i in range(a.rounds):
        check.schema(a.seed * 1_000_000 + i)
        check.regex(a.seed * 1_000_000 + i)
    print(check.counts)
    for needed in ("samples", "schemas", "valid instances", "invalid instances", "texts that match",
                   "texts that do not match"):
        if check.counts.get(needed, 0) < a.rounds // 2:
            check.fail(f"too few {needed} to mean anything")
    sys.exit(check.failures != 0)


if __name__ == "__main__":
    main()
