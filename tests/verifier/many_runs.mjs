// Runs the verifier's command again and again in one process of Node, which takes longer to start than most files to verify.
//   node many_runs.mjs VERIFIER
// Reads a run's arguments as a line of JSON, and writes its standard output, standard error and exit status as another.
// Each run evaluates the whole script anew, under a URL of its own, so nothing of the run before is left.
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [node, , verifier] = process.argv, url = pathToFileURL(verifier)
const answer = process.stdout.write.bind(process.stdout)
class Exit extends Error {}
let told, number = 0

process.stdout.write = (text) => { told.stdout += text; return true }
process.stderr.write = (text) => { told.stderr += text; return true }
process.exit = (status) => {
  process.exitCode = status
  throw new Exit()
}
for await (const line of createInterface({ input: process.stdin })) {
  told = { stdout: '', stderr: '' }
  process.argv = [node, verifier, ...JSON.parse(line)]
  process.exitCode = 0
  url.search = String(number += 1)
  try {
    await import(url.href)
  } catch (error) {
    if (!(error instanceof Exit)) throw error
  }
  answer(`${JSON.stringify({ ...told, status: process.exitCode })}\n`)
}
process.exitCode = 0
