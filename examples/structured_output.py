"""Structured output: a JSON Schema, a regular expression, a grammar."""
import json
import os

from deepinfer import LLM, SamplingParams

llm = LLM(os.environ.get("DEEPINFER_HF_MODEL_DIR", "models/tiny"), max_model_len=2048)

person = {
    "type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"]}
for kind, schema in (("json", json.dumps(person)), ("regex", r"\d{3}-(cat|dog)"), ("ebnf", 'root ::= "yes" | "no"')):
    parameters = SamplingParams(temperature=0, max_tokens=64, so_args={"schema_type": kind, "schema": schema})
    print(f"{kind:6}", llm.generate("Tell me about a person. ", parameters)[0])

llm.close()
