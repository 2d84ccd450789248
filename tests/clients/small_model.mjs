// A small language model as a command: the prompt on stdin, the answer on stdout. The argument is the model, a file of GGUF.
import {availableParallelism} from "node:os";

import {getLlama, LlamaChatSession} from "node-llama-cpp";

let prompt = "";
for await (const part of process.stdin) {
    prompt += part;
}
// More threads than processors wait for each other.
const threads = availableParallelism();
const llama = await getLlama({gpu: false, maxThreads: threads, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2]});
const context = await model.createContext({contextSize: 4096, threads});
const session = new LlamaChatSession({contextSequence: context.getSequence()});
console.log(await session.prompt(prompt, {maxTokens: 120, temperature: 0}));
process.exit(0);
