// Uses a server with the official OpenAI client for JavaScript, and prints what it got. Run by test_openai_javascript.py.
//
// node openai_client.cjs FOLDER-WITH-NODE_MODULES URL

const { createRequire } = require("node:module");
const { join } = require("node:path");

const [folder, baseURL] = process.argv.slice(2);
const OpenAI = createRequire(join(folder, "package.json"))("openai");

const client = new OpenAI({ baseURL, apiKey: "any" });
const model = "ADMIN";
const hello = { model, messages: [{ role: "user", content: "hello" }] };

async function all(stream) {
  const found = [];
  for await (const each of stream) found.push(each);
  return found;
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return [error.constructor.name, error.status, error.code];
  }
  return null;
}

async function completions() {
  const whole = await client.chat.completions.create(hello);
  const chunks = await all(
    await client.chat.completions.create({ ...hello, stream: true, stream_options: { include_usage: true } }),
  );
  const streamed = await client.chat.completions.stream(hello).finalChatCompletion();
  const json_schema = { name: "city", schema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] } };
  const parsed = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: "city" }],
    response_format: { type: "json_schema", json_schema },
  });
  return {
    models: (await all(client.models.list())).map((each) => each.id),
    whole: whole.choices[0].message.content,
    text: chunks.map((each) => each.choices[0]?.delta.content ?? "").join(""),
    tokens: chunks.at(-1).usage.total_tokens === whole.usage.total_tokens,
    streamed: streamed.choices[0].message.content,
    object: JSON.parse(parsed.choices[0].message.content),
  };
}

async function responses() {
  const first = await client.responses.create({ model, input: "one" });
  const reader = client.responses.stream({ model, input: "two", previous_response_id: first.id });
  const events = await all(reader);
  const second = await reader.finalResponse();
  const rest = await all(await client.responses.retrieve(second.id, { stream: true, starting_after: 3 }));
  const items = await all(client.responses.inputItems.list(second.id, { order: "asc", limit: 1 }));
  const running = await client.responses.create({ model, input: "wait", background: true });
  return {
    text: second.output_text,
    sameConversation: first.conversation.id === second.conversation.id,
    same: (await client.responses.retrieve(second.id)).output_text === second.output_text,
    last: events.at(-1).type,
    resumed: rest.map((each) => each.sequence_number)[0],
    items: items.map((each) => each.content[0].text),
    cancelled: (await client.responses.cancel(running.id)).status,
    deleted: await refused(() => client.responses.delete(second.id)),
  };
}

async function approvals() {
  const asked = await client.responses.create({ model, input: "a card" });
  const waiting = asked.output.at(-1);
  const answer = { type: "mcp_approval_response", approval_request_id: waiting.id, approve: true };
  const done = await client.responses.create({ model, input: [answer], previous_response_id: asked.id });
  return { name: waiting.name, arguments: waiting.arguments, done: done.output_text };
}

const parameters = { type: "object", properties: { at: { type: "string" } }, required: ["at"], additionalProperties: false };
const weather = { name: "get_weather", description: "The weather at a place.", parameters, strict: true };

// Loops of rounds in which the program runs the functions: with the client's own runner, and by hand.
async function functions() {
  const run = { ...weather, parse: JSON.parse, function: ({ at }) => `${at} is fine` };
  const asked = { model, messages: [{ role: "user", content: "weather" }], tools: [{ type: "function", function: run }] };
  const whole = await client.chat.completions.runTools(asked).finalContent();
  const streamed = await client.chat.completions.runTools({ ...asked, stream: true }).finalContent();
  const tools = [{ type: "function", ...weather }];
  let response = await client.responses.create({ model, input: "weather", tools });
  let rounds = 0;
  for (; response.output.at(-1).type === "function_call"; rounds++) {
    const input = response.output
      .filter((each) => each.type === "function_call")
      .map((each) => ({ type: "function_call_output", call_id: each.call_id, output: `${JSON.parse(each.arguments).at} is fine` }));
    response = await client.responses.stream({ model, input, tools, previous_response_id: response.id }).finalResponse();
  }
  return { whole, streamed, responses: response.output_text, rounds };
}

async function main() {
  const headers = { "Idempotency-Key": "k1" };
  await client.chat.completions.create(hello, { headers });
  const other = { model, messages: [{ role: "user", content: "other" }] };
  return {
    completions: await completions(),
    responses: await responses(),
    approvals: await approvals(),
    functions: await functions(),
    errors: [
      await refused(() => client.chat.completions.create({ ...hello, model: "NOBODY" })),
      await refused(() => client.chat.completions.create({ ...hello, n: 2 })),
      await refused(() => client.chat.completions.create(other, { headers })),
    ],
  };
}

main().then(
  (found) => console.log(JSON.stringify(found)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
