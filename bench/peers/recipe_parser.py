"""deepseek-recipe as a peer of bench_parser: reads one job a line, answers each with its CPU seconds.

A job is {"file": TEXT FILE, "chunk": characters per push, "thinking": bool, "json": bool}. The text is parsed into Chat
Completions chunks, with "json" also written as JSON. Ends with its standard input.
"""
import json
import sys
import time

from deepseek_recipe import (ChatCompletionRequest, ConversionOptions, InferenceChunk, InferenceFinishReason,
                             PromptUsage, StreamProcessor)

TOOLS = [{"type": "function", "function": {"name": "read_gauge", "parameters": {"type": "object"}}}]


def run(job):
    with open(job["file"], encoding="utf-8") as f:
        text = f.read()
    request = ChatCompletionRequest({
        "model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "q"}], "stream": True, "tools": TOOLS,
        "thinking": {"type": "enabled" if job["thinking"] else "disabled"}})
    converted = request.convert(ConversionOptions())
    options = converted.parsing_options
    processor = StreamProcessor(ChatCompletionRequest.chunk_generator(converted, "id", "model"), options)
    size = job["chunk"] or len(text)
    chunks = [InferenceChunk.text(text[i:i + size], 1) for i in range(0, len(text), size)]
    chunks.append(InferenceChunk.finish(InferenceFinishReason.Stop))
    begin = time.process_time()
    events = 0
    processor.push(InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=1)))
    for chunk in chunks:
        made = processor.push(chunk)
        events += len(made)
        if job["json"]:
            for event in made:
                event.to_json()
    return {"seconds": time.process_time() - begin, "events": events}


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
