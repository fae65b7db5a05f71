"""Offline inference for DeepSeek-V4.1-Flash.

    from deepinfer import LLM, SamplingParams
    llm = LLM("models/tiny")
    for answer in llm.generate(["Once upon a time", "One, two,"], SamplingParams(max_tokens=32, seq_seed=7)):
        print(answer, answer.finish_reason, answer.usage["completion_tokens"])

The call signatures are those of DeepInfer 0.1.0; docs/offline.md says what is added and what differs.
"""
from .llm import LLM, Tokenizer
from .outputs import Answer, TokenOutput, TokenOutputs
from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "Answer", "TokenOutput", "TokenOutputs", "Tokenizer"]
__version__ = "0.1.0"
