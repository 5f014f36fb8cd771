#!/usr/bin/env node
// Verifies Kitchener's ledgers and bundles with nothing but Node's own library (Node 18 or newer). What it checks, and why that
// is enough, is explained in docs/proof.md. It shares no code with Kitchener: two programs must agree on every verdict.
//
//   node verify.mjs [--public-key HEX] FILE...
//
// FILE is a ledger (*.jsonl; the segments in FILE.segments and the signed head in FILE.checkpoint are checked too) or a bundle
// (`kitchener ledger proof`).
// One line per file, exit code 0 if all are right and 1 if not.
// Each of its three parts can be read alone: entry.mjs (one line and the chain), ledger.mjs, bundle.mjs.
import { closeSync, openSync, readFileSync, readSync } from 'node:fs'
import { verifyBundle } from './bundle.mjs'
import { Misfit } from './entry.mjs'
import { verifyLedger } from './ledger.mjs'

const paths = process.argv.slice(2)
const at = paths.indexOf('--public-key')
const given = at >= 0 ? paths.splice(at, 2)[1] : null
if (!paths.length || (at >= 0 && !/^[0-9a-f]{64}$/.test(given ?? ''))) {
  console.error('usage: node verify.mjs [--public-key HEX] FILE...   (64 lower-case hex digits; ledgers and bundles)')
  process.exit(2)
}
for (const path of paths) {
  try {
    const fd = openSync(path), start = Buffer.alloc(11)
    try { readSync(fd, start) } finally { closeSync(fd) }
    const told = start.toString() === '{"entries":' ? verifyBundle(readFileSync(path), given) : verifyLedger(path, given)
    console.log(`ok       ${path}: ${told}`)
  } catch (error) {
    if (!(error instanceof Misfit) && error.syscall === undefined) throw error
    console.log(`damaged  ${path}: ${error.message.replace(/[\x00-\x1f\x7f-\x9f]/g, '\ufffd')}`)
    process.exitCode = 1
  }
}
