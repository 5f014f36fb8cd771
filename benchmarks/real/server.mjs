// Serves a GGUF model on loopback in OpenAI's chat-completions format: node server.mjs MODEL.gguf [PORT]
//
// Prints its port once it is ready, and ends with its standard input. Knows chat models that take ChatML, and answers one
// request at a time. A prompt that begins like an earlier one is evaluated from where it differs; `cached_tokens` counts
// the rest. No tools and no images.
import http from "node:http";
import {availableParallelism} from "node:os";
import {basename} from "node:path";
import {LlamaCompletion, LlamaText, SpecialTokensText, getLlama} from "node-llama-cpp";

const LONGEST_BODY = 8 * 1024 * 1024;
const MOST_WAITING = 64;
const DEFAULT_MAX_TOKENS = 512;
const PROMPTS_KEPT = 2; // a conversation, and one call beside it

const [path, port = "0"] = process.argv.slice(2);
const name = basename(path, ".gguf").toLowerCase();
// Threads wait for each other by spinning, so one on a core that another program uses holds up all of them.
const threads = Math.max(1, Math.min(4, availableParallelism() >> 1));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({contextSize: model.trainContextSize, sequences: PROMPTS_KEPT});
const kept = Array.from({length: PROMPTS_KEPT}, () => context.getSequence());

class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    Object.assign(this, {status, code});
  }
}

/** The messages as tokens, up to where the model goes on. A person's text cannot form a control token. */
function promptOf(messages) {
  const parts = messages.flatMap(({role, content}) => [
    new SpecialTokensText(`<|im_start|>${role}\n`), textOf(content), new SpecialTokensText("<|im_end|>\n"),
  ]);
  return LlamaText([...parts, new SpecialTokensText("<|im_start|>assistant\n")]).tokenize(model.tokenizer);
}

function textOf(content) {
  if (Array.isArray(content)) return content.map((part) => part.text ?? "").join("");
  return typeof content === "string" ? content : "";
}

/** The number of tokens that need no evaluation, and the kept prompt that has them: the one that begins most like this one.
 * Where none has a tenth of its tokens, the one used longest ago gives way. */
function closest(tokens) {
  const shared = ({contextTokens}) => {
    const end = Math.min(contextTokens.length, tokens.length - 1); // the last token is always evaluated
    let at = 0;
    while (at < end && contextTokens[at] === tokens[at]) at += 1;
    return at;
  };
  const found = kept.map((sequence) => [shared(sequence), sequence]);
  const [best] = found.toSorted(([one], [other]) => other - one);
  const chosen = best[0] * 10 > tokens.length ? best : found[0];
  kept.push(...kept.splice(kept.indexOf(chosen[1]), 1)); // so the one used longest ago comes first
  return chosen;
}

async function grammarOf(format) {
  if (format?.type === "json_object") return llama.getGrammarFor("json");
  if (format?.type !== "json_schema") return undefined;
  try {
    return await llama.createGrammarForJsonSchema(format.json_schema.schema);
  } catch {
    return llama.getGrammarFor("json"); // a schema that has no grammar: any JSON
  }
}

async function answer(body, onText, signal) {
  if (!Array.isArray(body.messages) || body.messages.length === 0) throw new Refused(400, "messages: expected a list");
  const tokens = promptOf(body.messages);
  const room = context.contextSize - tokens.length;
  if (room < 1) {
    const limits = `this model's maximum context length is ${context.contextSize} tokens, the messages take ${tokens.length}`;
    throw new Refused(400, limits, "context_length_exceeded");
  }
  const [cached, sequence] = closest(tokens);
  const before = sequence.tokenMeter.usedOutputTokens;
  const completion = new LlamaCompletion({contextSequence: sequence});
  try {
    const {response, metadata} = await completion.generateCompletionWithMeta(tokens, {
      maxTokens: Math.min(body.max_tokens ?? body.max_completion_tokens ?? DEFAULT_MAX_TOKENS, room),
      temperature: body.temperature ?? 0.3,
      seed: body.seed ?? 1,
      grammar: await grammarOf(body.response_format),
      onTextChunk: onText,
      signal,
    });
    const written = sequence.tokenMeter.usedOutputTokens - before;
    const usage = {
      prompt_tokens: tokens.length,
      completion_tokens: written,
      total_tokens: tokens.length + written,
      prompt_tokens_details: {cached_tokens: cached},
    };
    return {text: response, reason: metadata.stopReason === "maxTokens" ? "length" : "stop", usage};
  } finally {
    completion.dispose({disposeSequence: false});
  }
}

function sendJson(response, status, object) {
  response.writeHead(status, {"content-type": "application/json"}).end(JSON.stringify(object));
}

function sendError(response, error) {
  const status = error.status ?? 500;
  const type = status < 500 ? "invalid_request_error" : "server_error";
  sendJson(response, status, {error: {message: error.message, type, code: error.code ?? null}});
}

async function respond(body, response, signal) {
  const head = {id: `chatcmpl-${process.hrtime.bigint()}`, created: Math.floor(Date.now() / 1000), model: name};
  if (!body.stream) {
    const {text, reason, usage} = await answer(body, undefined, signal);
    const choice = {index: 0, message: {role: "assistant", content: text}, finish_reason: reason};
    return sendJson(response, 200, {...head, object: "chat.completion", choices: [choice], usage});
  }
  const send = (choices, more) => {
    if (!response.headersSent) response.writeHead(200, {"content-type": "text/event-stream"});
    response.write(`data: ${JSON.stringify({...head, object: "chat.completion.chunk", choices, ...more})}\n\n`);
  };
  const onText = (content) => send([{index: 0, delta: {role: "assistant", content}, finish_reason: null}]);
  const {reason, usage} = await answer(body, onText, signal);
  send([{index: 0, delta: {}, finish_reason: reason}]);
  if (body.stream_options?.include_usage) send([], {usage});
  response.end("data: [DONE]\n\n");
}

async function bodyOf(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > LONGEST_BODY) throw new Refused(413, `the request is longer than ${LONGEST_BODY} bytes`);
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString("utf8"));
  } catch {
    throw new Refused(400, "the request is not valid JSON");
  }
}

let last = Promise.resolve();
let waiting = 0;

async function complete(request, response) {
  const gone = new AbortController();
  response.on("close", () => gone.abort());
  const body = await bodyOf(request);
  if (waiting >= MOST_WAITING) throw new Refused(429, `${MOST_WAITING} requests wait already`);
  waiting += 1;
  const turn = last.then(() => (gone.signal.aborted ? undefined : respond(body, response, gone.signal)));
  last = turn.catch(() => undefined).finally(() => (waiting -= 1));
  await turn;
}

const server = http.createServer(async (request, response) => {
  try {
    if (request.url === "/v1/models") return sendJson(response, 200, {object: "list", data: [{id: name, object: "model"}]});
    if (request.url !== "/v1/chat/completions") throw new Refused(404, `no such address: ${request.url}`);
    await complete(request, response);
  } catch (error) {
    if (response.destroyed) return;
    if (response.headersSent) response.destroy(); // a stream that breaks off must not look complete
    else sendError(response, error);
  }
});
server.listen(Number(port), "127.0.0.1", () => console.log(server.address().port));
process.stdin.resume().on("end", () => process.exit(0));
process.on("SIGTERM", () => process.exit(0));
