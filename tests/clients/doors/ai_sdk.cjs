// Uses a server with the AI SDK for JavaScript, as web applications do, and prints what it got. Run by test_openai_javascript.py.
//
// node ai_sdk.cjs FOLDER-WITH-NODE_MODULES URL

const { createRequire } = require("node:module");
const { join } = require("node:path");

const [folder, baseURL] = process.argv.slice(2);
const from = createRequire(join(folder, "package.json"));
const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = from("ai");
const { createOpenAICompatible } = from("@ai-sdk/openai-compatible");

const provider = createOpenAICompatible({ name: "kitchener", baseURL, apiKey: "any", includeUsage: true });
const model = provider("ADMIN");

const tools = {
  get_weather: tool({
    description: "The weather at a place.",
    inputSchema: jsonSchema({ type: "object", properties: { at: { type: "string" } }, required: ["at"] }),
    execute: ({ at }) => `${at} is fine`,
  }),
};

// A loop of rounds in which the application runs the tools.
async function loops() {
  const asked = { model, tools, stopWhen: stepCountIs(9), messages: [{ role: "user", content: "weather" }] };
  const whole = await generateText(asked);
  const stream = streamText(asked);
  let text = "";
  for await (const each of stream.textStream) text += each;
  return { whole: whole.text, steps: whole.steps.length, text, streamed: (await stream.steps).length };
}

async function main() {
  const whole = await generateText({ model, prompt: "hello" });
  const headers = { "X-Chat-Id": "chat 1" };
  await generateText({ model, prompt: "one", headers });
  const messages = [
    { role: "user", content: "one" },
    { role: "assistant", content: "echo: one" },
    { role: "user", content: "two" },
  ];
  const stream = streamText({ model, messages, headers });
  let text = "";
  for await (const each of stream.textStream) text += each;
  const schema = jsonSchema({ type: "object", properties: { name: { type: "string" } }, required: ["name"] });
  const { object } = await generateObject({ model, prompt: "city", schema });
  let error = null;
  try {
    await generateText({ model: provider("NOBODY"), prompt: "hello" });
  } catch (caught) {
    error = [caught.statusCode, caught.message];
  }
  const usage = await stream.usage;
  const functions = await loops();
  return { functions, whole: whole.text, text, tokens: usage.totalTokens > 0, finish: await stream.finishReason, object, error };
}

main().then(
  (found) => console.log(JSON.stringify(found)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
