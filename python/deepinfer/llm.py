"""The engine in this process."""
from __future__ import annotations

import json
import os
import warnings
from typing import Any, Optional, Sequence, Union

import numpy as np

from . import _core
from .outputs import Answer, TokenOutputs, make_answers, make_token_outputs
from .sampling_params import SamplingParams

Prompt = Union[str, Sequence[int], np.ndarray]

# Engine arguments of DeepInfer 0.1.0 -> options of docs/configuration.md.
_OPTIONS = {"max_model_len": "context", "max_num_seqs": "sequences", "max_num_batched_tokens": "rows"}
# Options that may be given under their own name, with underscores.
_OWN_OPTIONS = ("device", "backend", "threads", "pin_threads", "host_experts", "ram", "context", "prefill", "sequences",
                "rows", "cache", "cache_mb", "keep", "ban_tokens", "top_k_max", "drafts", "draft_confidence",
                "draft_text", "draft_history", "draft_ahead", "grammar_timeout", "grammar_threads",
                "grammar_cache_bytes")
# Arguments of 0.1.0 that mean what happens anyway: the values that are accepted, and why others are not.
_ONE_RANK = "one process uses one device here"
_FIXED = {
    "data_parallel_size": ((0, 1), _ONE_RANK), "context_parallel_size": ((1,), _ONE_RANK),
    "expert_parallel_size": ((1,), _ONE_RANK), "engram_parallel_size": ((0, 1), _ONE_RANK),
    "engine_rank": ((0,), _ONE_RANK), "engine_group_rank": ((0,), _ONE_RANK),
    "tokens_per_block": ((-1, 128), "KV blocks have 128 tokens"),
    "engine_type": (("NORMAL",), "prompts and answers run in one engine here"),
    "offline_inference": ((True,), "this class is offline inference"),
}
_WITHOUT_EFFECT = ("served_model_name", "trust_remote_code", "tokenizer_revision", "disable_log_stats",
                   "stop_preempted_request", "chunked_prefill", "ignore_len", "lookahead_tokens")


class Tokenizer:
    """The model's tokenizer: text <-> token ids."""

    def __init__(self, model: _core.Model, info: dict) -> None:
        self._model = model
        self.vocab_size: int = info["vocab_size"]
        self.bos_token_id: int = info["bos_token_id"]
        self.eos_token_id: int = info["eos_token_id"]

    def encode(self, text: str) -> list[int]:
        """As a text prompt is encoded: special tokens by their spelling, the beginning-of-sentence token first."""
        return self._model.tokenize(text).tolist()

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._model.detokenize([int(t) for t in token_ids])


class LLM:
    """Loads a model and answers prompts in batches.

    model                 folder of a checkpoint, or the name of one that `deepinfer pull` fetched
    decode_sequence       True: answers are strings (Answer); False: lists with an object a token (TokenOutputs)
    load_format           "auto", or "dummy": random weights in the shape of the model's config.json
    seed                  of the answers to prompts without one, and of dummy weights
    config                a configuration file (docs/configuration.md); also DEEPINFER_CONFIG
    and every option of docs/configuration.md that says "python", with underscores: LLM(path, threads=2, cache=False)
    """

    def __init__(self, model: str = "", tokenizer: Optional[str] = None, trust_remote_code: bool = False,
                 expert_parallel_size: int = 1, revision: Optional[str] = None,
                 tokenizer_revision: Optional[str] = None, seed: int = 0, gpu_memory_utilization: float = 0.90,
                 decode_sequence: bool = True, *, load_format: str = "auto", config: str = "",
                 **engine_args: Any) -> None:
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be auto or dummy, not {load_format!r}.")
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}.")
        if gpu_memory_utilization != 0.90:
            warnings.warn("gpu_memory_utilization has no effect: memory follows from context and sequences.",
                          stacklevel=2)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
            raise ValueError("seed must be a whole number from 0 to 18446744073709551615.")
        flags = _flags({"expert_parallel_size": expert_parallel_size, **engine_args})
        name = os.fspath(model)
        if revision is not None:
            if os.path.isdir(name):
                raise ValueError("revision is only possible with the name of a pulled model, not with a folder.")
            name += "@" + revision
        more = {
            "tokenizer": os.fspath(tokenizer) if tokenizer else "", "dummy_weights": load_format == "dummy",
            "seed": seed, "library_dir": os.path.dirname(os.path.abspath(__file__))}
        self.decode_sequence = decode_sequence
        self._model = _core.Model(name, flags, os.fspath(config), more)
        self._info = self._model.info()
        self._requests = 0
        for note in self._info["notes"]:
            warnings.warn(note, stacklevel=2)

    def generate(self, prompts: Union[Prompt, Sequence[Prompt], None] = None,
                 sampling_params: Union[SamplingParams, Sequence[SamplingParams], None] = None,
                 prompt_token_ids: Optional[Sequence[Sequence[int]]] = None, use_tqdm: bool = True,
                 multi_modal_data: Any = None, *, logits: bool = False,
                 decode_sequence: Optional[bool] = None) -> Union[list[Answer], list[TokenOutputs]]:
        """One result a prompt, in their order; what is wrong with a prompt is in the `error` of its result.

        prompts are texts, or lists or arrays of token ids; prompt_token_ids is the same under 0.1.0's name.
        """
        if multi_modal_data is not None:
            raise ValueError("multi_modal_data: images are not possible in offline jobs yet.")
        if (prompts is None) == (prompt_token_ids is None):
            raise ValueError("Give either prompts or prompt_token_ids.")
        inputs = _prompt_list(prompts if prompts is not None else prompt_token_ids)
        parameters = _parameter_list(sampling_params, len(inputs))
        raw = self._model.generate(inputs, [p.to_dict() for p in parameters], bool(use_tqdm), bool(logits))
        return self._results(raw, parameters, decode_sequence)

    def chat(self, messages: Sequence[Any],
             sampling_params: Union[SamplingParams, Sequence[SamplingParams], None] = None,
             use_tqdm: bool = True, *, thinking: bool = True, effort: Optional[str] = None,
             tools: Optional[list] = None,
             decode_sequence: Optional[bool] = None) -> Union[list[Answer], list[TokenOutputs]]:
        """Answers conversations: a list of {"role", "content"} messages, or a list of such lists.

        Messages and tools are those of Chat Completions. The answer is the text proper; `reasoning` and `tool_calls`
        stand beside it.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        mode = {"type": "enabled" if thinking else "disabled"}
        body: dict[str, Any] = {"model": "deepseek-v4.1-flash", "thinking": mode}
        if effort is not None:
            body["reasoning_effort"] = effort
        if tools:
            body["tools"] = tools
        bodies = [json.dumps({**body, "messages": list(c)}) for c in conversations]
        parameters = _parameter_list(sampling_params, len(bodies))
        raw = self._model.chat(bodies, [p.to_dict() for p in parameters], bool(use_tqdm))
        return self._results(raw, parameters, decode_sequence)

    def logits(self, prompt: Prompt) -> np.ndarray:
        """float32 [tokens, vocabulary]: row i is what the model gives for the token behind prompt token i."""
        return self._model.logits(prompt)

    def draft_stats(self) -> dict:
        """Guesses of coming tokens so far: made, checked in a step, and right (docs/speculation.md)."""
        return self._model.draft_stats()

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._model, self._info)

    def close(self) -> None:
        self._model.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _results(self, raw: list, parameters: list, decode_sequence: Optional[bool]) -> list:
        answers = [make_answers(prompt, self._info["max_model_len"]) for prompt in raw]
        if self.decode_sequence if decode_sequence is None else decode_sequence:
            return answers
        first, self._requests = self._requests, self._requests + len(answers)
        guessed = self._model.draft_stats()["made"] > 0
        return [make_token_outputs(a, first + i, parameters[i if len(parameters) > 1 else 0].max_tokens, guessed)
                for i, a in enumerate(answers)]


def _flags(arguments: dict) -> dict:
    flags = {}
    for name, value in arguments.items():
        if name in _FIXED:
            accepted, why = _FIXED[name]
            if value is not None and value not in accepted:
                raise ValueError(f"{name}={value!r} is not possible: {why}.")
        elif name in _OPTIONS or name in _OWN_OPTIONS:
            option = _OPTIONS.get(name, name.replace("_", "-"))
            if value is None:
                continue
            if option in flags:
                raise ValueError(f"{name} and {option.replace('-', '_')} are the same option; give one of them.")
            flags[option] = ("on" if value else "off") if isinstance(value, bool) else str(value)
        elif name not in _WITHOUT_EFFECT:
            known = sorted([*_FIXED, *_OPTIONS, *_OWN_OPTIONS, *_WITHOUT_EFFECT])
            raise TypeError(f"LLM has no argument {name!r}; there are {', '.join(known)}.")
    return flags


def _prompt_list(prompts: Any) -> list:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, np.ndarray) and prompts.ndim == 1 and prompts.dtype != object:
        return [prompts]
    if not hasattr(prompts, "__iter__"):
        raise ValueError(f"prompts must be a list of prompts, not {type(prompts).__name__}.")
    prompts = list(prompts)
    return [prompts] if prompts and all(isinstance(p, (int, np.integer)) for p in prompts) else prompts


def _parameter_list(parameters: Any, prompts: int) -> list:
    if parameters is None:
        return [SamplingParams()]
    if isinstance(parameters, SamplingParams):
        return [parameters]
    parameters = list(parameters)
    if len(parameters) != prompts:
        raise ValueError(
            f"There are {len(parameters)} sets of parameters for {prompts} prompts; give one, or one a prompt.")
    if not all(isinstance(p, SamplingParams) for p in parameters):
        raise ValueError("sampling_params must be a SamplingParams, or a list of them.")
    return parameters
