// See llama_cpp.sh. Medians of five runs: a prompt of 512 tokens, then 48 greedy tokens behind it.
import { getLlama } from "node-llama-cpp";

const llama = await getLlama({ gpu: false, build: "never", logLevel: "error", maxThreads: 1 });
const model = await llama.loadModel({ modelPath: process.argv[2] });
const context = await model.createContext({ contextSize: 1024, batchSize: 512, threads: 1, sequences: 1 });
const sequence = context.getSequence();
const cpuSeconds = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
const prompt = Array.from({ length: 512 }, (_, i) => 5 + ((i * 7919) % 40000));
const prefill = [];
const decode = [];
for (let run = 0; run < 5; ++run) {
  await sequence.clearHistory();
  let start = cpuSeconds();
  await sequence.evaluateWithoutGeneratingNewTokens(prompt);
  prefill.push(prompt.length / (cpuSeconds() - start));
  start = cpuSeconds();
  let tokens = 0;
  for await (const _ of sequence.evaluate([prompt[0]], { temperature: 0 })) if (++tokens >= 48) break;
  decode.push(tokens / (cpuSeconds() - start));
}
console.log(JSON.stringify({ prefill: median(prefill), decode: median(decode) }));
process.exit(0);
