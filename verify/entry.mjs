// One entry and the chain that it stands in: the forms, hashes and signatures of docs/ledger.md and docs/proof.md.
import { createHash, createPublicKey, verify as verifies } from 'node:crypto'

export class Misfit extends Error {
  constructor(where, field, expected, found) { super(`${where}: ${field}: expected ${text(expected)}, found ${text(found)}`) }
}
const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? 'nothing').slice(0, 300)
export const demand = (isSo, where, field, expected, found) => { if (!isSo) throw new Misfit(where, field, expected, found) }
export const same = (where, field, expected, found) =>
  demand(JSON.stringify(expected) === JSON.stringify(found), where, field, expected, found)
export const sha256 = (data) => createHash('sha256').update(data).digest('hex')
export const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value)
export const keysOf = (value) => (isObject(value) ? Object.keys(value).sort().join() : '')

// RFC 8785: JSON as JavaScript writes it, with the keys sorted by UTF-16 units, which is how JavaScript sorts text.
export const canonical = (value) =>
  Array.isArray(value) ? `[${value.map(canonical).join()}]`
    : isObject(value) ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join()}}`
      : JSON.stringify(value)
const LONE_SURROGATE = /(?<!\\)(?:\\\\)*\\ud[89a-f]/
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
export function parseCanonical (bytes, where, field) {
  try {
    const found = decoder.decode(bytes)
    const value = JSON.parse(found)
    if (canonical(value) === found && !LONE_SURROGATE.test(found)) return value
  } catch (error) { if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error }
  throw new Misfit(where, field, 'canonical JSON (RFC 8785)', bytes.toString('latin1').slice(0, 60))
}

// --- one line ---------------------------------------------------------------------------------------------------------------
const FORM = new RegExp(String.raw`^\{"ledger_id":"([ !#-\[\]-{}~]+)","seq":([1-9]\d*),"entry_id":"(E-\d{4}-\d\d-\d\d-\d{12,})",` +
  String.raw`"batch":\[([1-9]\d*),([1-9]\d*),([1-9]\d*)\],"entry_hash":"sha256:([0-9a-f]{64})","chain_hash":"sha256:([0-9a-f]{64})","entry":`)
const STAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|\+00:00)$/
const isMoment = (stamp) => typeof stamp === 'string' && STAMP.test(stamp) && !isNaN(Date.parse(stamp)) &&
  new Date(stamp).toISOString().slice(0, 19) === stamp.slice(0, 19) // no 30th of February

// The parts of a line, each of its bytes accounted for: the form is fixed up to `"entry":`, the body is hashed, a brace ends it.
export function splitLine (raw, where) {
  const found = FORM.exec(raw.toString('latin1', 0, 1500))
  demand(found && raw[raw.length - 1] === 0x7d, where, 'framing', 'a line of a ledger', raw.toString('latin1').slice(0, 60))
  const [head, ledgerId, seq, entryId, number, place, size, entryHash, chainHash] = found
  const body = raw.subarray(head.length, -1)
  same(where, 'entry_hash', `sha256:${entryHash}`, `sha256:${sha256(body)}`)
  const fields = parseCanonical(body, where, 'entry')
  demand(keysOf(fields) === 'entity_id,entry_type,payload,timestamp' && isObject(fields.payload), where, 'entry', 'entity_id, entry_type, payload, timestamp', keysOf(fields))
  const stamp = fields.timestamp
  demand(isMoment(stamp), where, 'timestamp', 'UTC with microseconds', stamp)
  same(where, 'entry_id', `E-${stamp.slice(0, 10)}-${seq.padStart(12, '0')}`, entryId)
  const batch = [Number(number), Number(place), Number(size)]
  return { ledgerId, seq: Number(seq), entryId, batch, entryHash: `sha256:${entryHash}`, chainHash: `sha256:${chainHash}`, body, fields }
}

// The chain: each link stands for all before it.
export const START = { seq: 0, batch: [0, 1, 1], chainHash: `sha256:${'0'.repeat(64)}`, stamp: '' }
const link = (before, ledgerId, { seq, entryId, entryHash }) =>
  `sha256:${sha256(`kitchener/1|${before}|${ledgerId}|${seq}|${entryId}|${entryHash}`)}`
export function checkLink (before, entry, ledgerId, where) {
  same(where, 'seq', before.seq + 1, entry.seq)
  const [number, place, size] = before.batch
  same(where, 'batch', place === size ? [number + 1, 1, entry.batch[2]] : [number, place + 1, size], entry.batch)
  demand(entry.batch[1] <= entry.batch[2], where, 'batch', 'a place within its commit', entry.batch)
  same(where, 'chain_hash', link(before.chainHash, ledgerId, entry), entry.chainHash)
}

// --- signed heads -----------------------------------------------------------------------------------------------------------
export const SIGNED = 'chain_hash,ledger_id,public_key,seq,sig,signer,timestamp'
export const isHash = (value) => /^sha256:[0-9a-f]{64}$/.test(value)
export const isCount = (value) => Number.isSafeInteger(value) && value > 0
export const signerOf = (key) => `ed25519:${sha256(Buffer.from(key, 'hex')).slice(0, 16)}`
export function isSigned (key, data, sig) {
  if (!/^[0-9a-f]{64}$/.test(key) || !/^[0-9a-f]{128}$/.test(sig)) return false
  const der = Buffer.from(`302a300506032b6570032100${key}`, 'hex') // what X.509 puts before 32 bytes of Ed25519
  try { return verifies(null, Buffer.from(data), createPublicKey({ key: der, format: 'der', type: 'spki' }), Buffer.from(sig, 'hex')) } catch { return false }
}
export function checkHead (head, where, given) {
  const named = signerOf(head.public_key)
  same(where, 'signer', named, head.signer)
  if (given) same(where, 'public_key', given, head.public_key)
  const data = `kitchener/1/head|${head.ledger_id}|${head.seq}|${head.chain_hash}|${head.timestamp}`
  demand(isSigned(head.public_key, data, head.sig), where, 'sig', `a signature by ${named} over this head`, head.sig)
  return `${named} (${given ? 'the given key' : 'a key it names itself'}), on ${head.timestamp}`
}
export const isSignedHead = (head) => keysOf(head) === SIGNED && isCount(head.seq) && isHash(head.chain_hash) &&
  /^[0-9a-f]{64}$/.test(head.public_key) && ['ledger_id', 'timestamp', 'signer', 'sig'].every((key) => typeof head[key] === 'string' && /^[^|\u0080-\uffff]*$/.test(head[key]))
