"""What is asked of an answer."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Optional, Sequence, Union


@dataclass
class SamplingParams:
    """Parameters of one prompt or of all of a call. Values out of range raise ValueError when they are used.

    The first group has DeepInfer 0.1.0's names, meanings and defaults; where a name did nothing there, it works here.
    """

    temperature: float = 1.0  # below 1e-5: the likeliest token, without top_p and top_k
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    ignore_eos: bool = False
    max_tokens: int = 16  # 0 counts as 1
    logprobs: bool = False  # of each token, in the distribution that it was drawn from
    prompt_logprobs: bool = False  # of each prompt token but the first; that prompt runs through all layers
    top_logprobs: int = 0  # so many of the likeliest tokens a position, 0 to 1000
    first_n_token_no_eos: int = 0  # no end of sentence among the first n tokens
    eos_id: int = 0  # not used: it comes from the model
    # {"schema_type": "json" | "regex" | "ebnf", "schema": .., "trigger_token_ids"?, "bound_token_id"?}
    so_args: Optional[dict] = None
    golden_token_ids: Optional[Sequence[int]] = None  # taken instead of what is drawn; -1 leaves the model's choice
    seq_seed: Optional[int] = None  # the same seed, the same answer; None: each prompt has its own, from LLM(seed=..)

    n: int = 1  # answers to each prompt
    min_tokens: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Optional[dict] = None
    allowed_token_ids: Optional[Sequence[int]] = None
    stop: Union[str, Sequence[str], None] = None
    stop_token_ids: Optional[Sequence[int]] = None
    raw_logprobs: bool = False  # logprobs of the model itself: temperature 1, no penalties, no masks
    full_prefill: bool = False  # the decoder half of the model reads the whole prompt
    priority: int = 0  # -8 to 8
    timeout: float = 0.0  # seconds; 0: none

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"SamplingParams has no parameter {name!r}.")
        object.__setattr__(self, name, value)
