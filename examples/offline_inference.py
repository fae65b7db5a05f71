"""Offline inference: several prompts at once, without a server.

    pip install .     (or PYTHONPATH=build/release/python after tools/build.sh release)
    python3 examples/offline_inference.py
"""
import os

from deepinfer import LLM, SamplingParams

llm = LLM(os.environ.get("DEEPINFER_HF_MODEL_DIR", "models/tiny"), max_model_len=2048)

prompts = ["The capital of France is", "Once upon a time", "One, two, three,"]
for prompt, answer in zip(prompts, llm.generate(prompts, SamplingParams(temperature=0.6, max_tokens=32, seq_seed=7))):
    print(f"{prompt}{answer}  [{answer.finish_reason}, {answer.usage['completion_tokens']} tokens]")

reply = llm.chat([{"role": "user", "content": "Say hello."}], SamplingParams(temperature=0, max_tokens=64),
                 thinking=False)[0]
print("Say hello. ->", reply)

llm.close()
