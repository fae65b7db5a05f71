"""What comes back for a prompt."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np


class Answer(str):
    """The text of an answer, with all else that is known of it.

    token_ids            numpy int32: all drawn tokens, the one that ended the answer included
    finish_reason        stop, stop_text, length, context_full, kv_full, timeout, prompt_length_exceeded, error
    stop_text            the stop text that ended it
    logprobs             numpy float64, a token each; None if not asked for
    top_logprobs         a list [(id, logprob, bytes), ..] a token each; None without logprobs
    logits               numpy float32 [tokens, vocabulary] with generate(logits=True)
    prompt_token_ids     numpy int32;  prompt_logprobs, prompt_top_logprobs: a prompt token each, None for the first
    usage                prompt_tokens, completion_tokens, total_tokens, cached_tokens, replayed_tokens, preemptions
    timings              first_token_s, total_s
    error                None, or the sentence that says why there is no answer
    answers              all n answers of the prompt, this one first
    reasoning, tool_calls  of a chat
    """

    token_ids: np.ndarray
    finish_reason: str
    stop_text: str
    logprobs: Optional[np.ndarray]
    top_logprobs: Optional[list]
    logits: Optional[np.ndarray]
    prompt_token_ids: np.ndarray
    prompt_logprobs: Optional[list]
    prompt_top_logprobs: Optional[list]
    usage: dict
    timings: dict
    error: Optional[str]
    answers: list
    reasoning: str
    tool_calls: list


@dataclass
class TokenOutput:
    """One token, as DeepInfer 0.1.0 reports it with decode_sequence=False."""

    request_id: int
    prompt_len: int
    token_id: int
    finish_reason: Optional[str]  # of the last token
    is_finished: bool
    max_tokens: int
    logprob: Optional[float]
    top_logprobs: list = field(default_factory=list)
    top_logprob_ids: list = field(default_factory=list)
    draft_logprob: Optional[float] = None  # not reported
    sum_smaller_probs: float = -1.0  # not reported
    output_len: int = 0  # tokens so far, this one included
    prompt_logprobs: Optional[list] = None  # with the first token
    num_verified_drafts: Optional[int] = 1  # plus one, as there; None (not reported a token) once this LLM has guessed
    num_accepted_drafts: Optional[int] = 1  # the same; LLM.draft_stats() has the sums
    draft_confidences: list = field(default_factory=list)


class TokenOutputs(list):
    """The tokens of one prompt's answer; empty if the prompt was refused. `answer` is the same as text."""

    answer: Answer

    @property
    def error(self) -> Optional[str]:
        return self.answer.error

    @property
    def finish_reason(self) -> str:
        return self.answer.finish_reason


def make_answer(prompt: dict, i: int, context: int) -> Answer:
    raw = prompt["answers"][i]
    answer = Answer(raw["text"])
    for name in ("token_ids", "finish_reason", "stop_text", "logprobs", "top_logprobs", "logits", "usage", "timings",
                 "error"):
        setattr(answer, name, raw[name])
    for name in ("prompt_token_ids", "prompt_logprobs", "prompt_top_logprobs"):
        setattr(answer, name, prompt[name])
    answer.reasoning = raw.get("reasoning", "")
    answer.tool_calls = [{"name": name, "arguments": arguments} for name, arguments in raw.get("tool_calls", ())]
    if raw["failed"] and len(answer.prompt_token_ids) >= context:
        answer.finish_reason = "prompt_length_exceeded"
    return answer


def make_answers(prompt: dict, context: int) -> Answer:
    answers = [make_answer(prompt, i, context) for i in range(len(prompt["answers"]))]
    for i, answer in enumerate(answers):
        answer.answers = [answer, *answers[:i], *answers[i + 1:]]
    return answers[0]


def make_token_outputs(answer: Answer, request_id: int, max_tokens: int, guessed: bool) -> TokenOutputs:
    drafts = None if guessed else 1
    outputs = TokenOutputs()
    outputs.answer = answer
    last = len(answer.token_ids) - 1
    for i, token in enumerate(answer.token_ids):
        top: Any = answer.top_logprobs[i] if answer.top_logprobs else []
        outputs.append(TokenOutput(
            request_id=request_id, prompt_len=len(answer.prompt_token_ids), token_id=int(token),
            finish_reason=answer.finish_reason if i == last else None, is_finished=i == last, max_tokens=max_tokens,
            logprob=float(answer.logprobs[i]) if answer.logprobs is not None else None,
            top_logprobs=[p for _, p, _ in top], top_logprob_ids=[t for t, _, _ in top], output_len=i + 1,
            prompt_logprobs=answer.prompt_logprobs if i == 0 else None,
            num_verified_drafts=drafts, num_accepted_drafts=drafts))
    return outputs
