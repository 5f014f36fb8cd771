// Reads a librechat.yaml as LibreChat does, and prints the endpoints that it makes of it. Run by test_librechat_settings.py.
//
// node librechat_settings.cjs FOLDER-WITH-NODE_MODULES < librechat.yaml

const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");
const { join } = require("node:path");

const from = createRequire(join(process.argv[2], "package.json"));
const { configSchema } = from("librechat-data-provider");
const { load } = from("js-yaml");

const given = load(readFileSync(0, "utf8"));
const read = configSchema.strict().safeParse(given);
if (!read.success) {
  console.error(JSON.stringify(read.error.issues));
  process.exit(1);
}
console.log(JSON.stringify({ given: given.endpoints.custom, read: read.data.endpoints.custom }));
