// Talks to an agent with the official AG-UI client, and prints what a person would see. Run by tests/serve/agui/test_official_client.py.
//
// node front_end.cjs FOLDER-WITH-NODE_MODULES URL

const { createRequire } = require("node:module");
const { join } = require("node:path");

const [folder, url] = process.argv.slice(2);
const { HttpAgent } = createRequire(join(folder, "package.json"))("@ag-ui/client");

const agent = new HttpAgent({ url, threadId: "js", headers: { authorization: "Bearer any" } });
const shown = [];
const warnings = [];
console.warn = (...told) => void warnings.push(told.join(" "));

function texts() {
  return agent.messages
    .filter((each) => ["user", "assistant", "tool"].includes(each.role) && each.content)
    .map((each) => `${each.role}: ${each.content}`);
}

const parameters = { type: "object", properties: { at: { type: "string" } }, required: ["at"] };
const tools = [{ name: "get_weather", description: "The weather at a place.", parameters }];

async function say(text, resume) {
  if (text !== undefined) agent.addMessage({ id: `user-${agent.messages.length}`, role: "user", content: text });
  const kinds = [];
  await agent.runAgent(resume === undefined ? { tools } : { resume, tools }, { onEvent: ({ event }) => void kinds.push(event.type) });
  shown.push({ kinds, texts: texts(), interrupts: agent.pendingInterrupts });
}

async function main() {
  await say("hello");
  await say("reject");
  await say("go");
  const [waits] = agent.pendingInterrupts;
  await say("not yet").catch((error) => shown.push({ refused: String(error) }));
  agent.messages.pop();
  const payload = { approved: true, editedArgs: { to: "bob" } };
  await say(undefined, [{ interruptId: waits.id, status: "resolved", payload }]);
  await say("thanks");
  await say("weather");
  const { id, function: asked } = agent.messages.findLast((each) => each.toolCalls).toolCalls[0];
  agent.addMessage({ id: "out-1", role: "tool", toolCallId: id, content: `${JSON.parse(asked.arguments).at} is fine` });
  await say();
  await say("thanks again");
  const calls = agent.messages.flatMap((each) => each.toolCalls ?? []).map((each) => each.function.arguments);
  const nobody = new HttpAgent({ url: url.replace("ADMIN", "NOBODY"), threadId: "js" });
  const error = await nobody.runAgent({}).then(() => "", (failed) => failed.message);
  console.log(JSON.stringify({ shown, calls, error, warnings }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
