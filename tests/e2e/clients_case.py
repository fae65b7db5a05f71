"""What the tests of the official Python clients share: questions that the bundled model answers, a server to ask."""
import unittest

import pydantic

from program import SANITIZED
from server import Server

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the current weather for a city.", "parameters": CITY},
}
WEATHER_BLOCK = {"name": "get_weather", "description": "Get the current weather for a city.", "input_schema": CITY}
RESULT = '{"temperature": 18, "unit": "celsius", "condition": "sunny"}'
QUESTION = "What is the weather in Paris?"
ROSA = "Put this into JSON with the keys name, age, city: My name is Rosa. I live in Lisbon. I am 34 years old."
OFF = {"thinking": {"type": "disabled"}}
GREEDY = {"temperature": 0}  # not a parameter of this version of the anthropic client


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    age: int
    city: str


def user(text):
    return [{"role": "user", "content": text}]


def start_server():
    if SANITIZED:
        raise unittest.SkipTest("needs a build without sanitizers")
    return Server("--context", "32768")
