#!/usr/bin/env node
// Verifies Kitchener's ledgers and bundles with nothing but Node's own library (Node 18 or newer). What it checks, and why that
// is enough, is explained in docs/proof.md. It shares no code with Kitchener: two programs must agree on every verdict.
//
//   node verify.mjs [--public-key HEX] FILE...
//
// FILE is a ledger (*.jsonl; the segments in FILE.segments and the signed head in FILE.checkpoint are checked too) or a bundle
// (`kitchener ledger proof`).
// One line per file, exit code 0 if all are right and 1 if not.
import { createHash, createPublicKey, verify as verifies } from 'node:crypto'
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readSync, statSync } from 'node:fs'

class Misfit extends Error {
  constructor(where, field, expected, found) { super(`${where}: ${field}: expected ${text(expected)}, found ${text(found)}`) }
}
const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? 'nothing').slice(0, 300)
const demand = (isSo, where, field, expected, found) => { if (!isSo) throw new Misfit(where, field, expected, found) }
const same = (where, field, expected, found) =>
  demand(JSON.stringify(expected) === JSON.stringify(found), where, field, expected, found)
const sha256 = (data) => createHash('sha256').update(data).digest('hex')
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value)
const keysOf = (value) => (isObject(value) ? Object.keys(value).sort().join() : '')

// RFC 8785: JSON as JavaScript writes it, with the keys sorted by UTF-16 units, which is how JavaScript sorts text.
const canonical = (value) =>
  Array.isArray(value) ? `[${value.map(canonical).join()}]`
    : isObject(value) ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join()}}`
      : JSON.stringify(value)
const LONE_SURROGATE = /(?<!\\)(?:\\\\)*\\ud[89a-f]/
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
function parseCanonical (bytes, where, field) {
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
function splitLine (raw, where) {
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
const START = { seq: 0, batch: [0, 1, 1], chainHash: `sha256:${'0'.repeat(64)}`, stamp: '' }
const link = (before, ledgerId, { seq, entryId, entryHash }) =>
  `sha256:${sha256(`kitchener/1|${before}|${ledgerId}|${seq}|${entryId}|${entryHash}`)}`
function checkLink (before, entry, ledgerId, where) {
  same(where, 'seq', before.seq + 1, entry.seq)
  const [number, place, size] = before.batch
  same(where, 'batch', place === size ? [number + 1, 1, entry.batch[2]] : [number, place + 1, size], entry.batch)
  demand(entry.batch[1] <= entry.batch[2], where, 'batch', 'a place within its commit', entry.batch)
  same(where, 'chain_hash', link(before.chainHash, ledgerId, entry), entry.chainHash)
}

// --- signed heads -----------------------------------------------------------------------------------------------------------
const SIGNED = 'chain_hash,ledger_id,public_key,seq,sig,signer,timestamp'
const isHash = (value) => /^sha256:[0-9a-f]{64}$/.test(value)
const isCount = (value) => Number.isSafeInteger(value) && value > 0
const signerOf = (key) => `ed25519:${sha256(Buffer.from(key, 'hex')).slice(0, 16)}`
function isSigned (key, data, sig) {
  if (!/^[0-9a-f]{64}$/.test(key) || !/^[0-9a-f]{128}$/.test(sig)) return false
  const der = Buffer.from(`302a300506032b6570032100${key}`, 'hex') // what X.509 puts before 32 bytes of Ed25519
  try { return verifies(null, Buffer.from(data), createPublicKey({ key: der, format: 'der', type: 'spki' }), Buffer.from(sig, 'hex')) } catch { return false }
}
function checkHead (head, where, given) {
  const named = signerOf(head.public_key)
  same(where, 'signer', named, head.signer)
  if (given) same(where, 'public_key', given, head.public_key)
  const data = `kitchener/1/head|${head.ledger_id}|${head.seq}|${head.chain_hash}|${head.timestamp}`
  demand(isSigned(head.public_key, data, head.sig), where, 'sig', `a signature by ${named} over this head`, head.sig)
  return `${named} (${given ? 'the given key' : 'a key it names itself'}), on ${head.timestamp}`
}
const isSignedHead = (head) => keysOf(head) === SIGNED && isCount(head.seq) && isHash(head.chain_hash) &&
  /^[0-9a-f]{64}$/.test(head.public_key) && ['ledger_id', 'timestamp', 'signer', 'sig'].every((key) => typeof head[key] === 'string' && /^[^|\u0080-\uffff]*$/.test(head[key]))

// --- a ledger ---------------------------------------------------------------------------------------------------------------
function * linesOf (path, hash) {
  const fd = openSync(path), piece = Buffer.alloc(1 << 20)
  let rest = Buffer.alloc(0)
  try {
    for (let size; (size = readSync(fd, piece)) > 0;) {
      hash.update(piece.subarray(0, size))
      rest = Buffer.concat([rest, piece.subarray(0, size)])
      let start = 0
      for (let end; (end = rest.indexOf(10, start)) >= 0; start = end + 1) yield rest.subarray(start, end)
      rest = rest.subarray(start)
    }
    if (rest.length) yield null // bytes that no LF ends
  } finally { closeSync(fd) }
}

// The seals of the finished segments. A last one that begins where the ledger's own file begins is a draft: its entries are there.
const SEAL = 'first_chain_hash,first_seq,format,last_chain_hash,last_seq,ledger_id,length,number,previous,sha256'
function sealsOf (path) {
  const folder = `${path}.segments`, seals = []
  if (!existsSync(folder)) return seals
  const numbers = readdirSync(folder).map((name) => Number(/^(\d{6,})\.(?:seal|segment)$/.exec(name)?.[1] ?? 0))
  let previous = `sha256:${'0'.repeat(64)}`, due = 1
  for (let number = 1; number <= numbers.reduce((most, each) => Math.max(most, each), 0); number++) {
    const name = `${folder}/${String(number).padStart(6, '0')}`, file = `${name}.seal`
    demand(existsSync(file), file, 'file', `the seal of segment ${number}`, 'nothing')
    const bytes = readFileSync(file)
    demand(bytes[bytes.length - 1] === 10, file, 'framing', 'a line', bytes.toString('latin1').slice(0, 60))
    const seal = parseCanonical(bytes.subarray(0, -1), file, 'framing')
    const counts = [seal.number, seal.first_seq, seal.last_seq, seal.length], hashes = [seal.first_chain_hash, seal.last_chain_hash, seal.sha256, seal.previous]
    demand(keysOf(seal) === SEAL && seal.format === 'kitchener-seal/1' && counts.every(isCount) && hashes.every(isHash) && seal.first_seq <= seal.last_seq, file, 'framing', `a seal with ${SEAL}`, keysOf(seal))
    same(file, 'number', number, seal.number)
    same(file, 'ledger_id', seals[0]?.ledger_id ?? seal.ledger_id, seal.ledger_id)
    same(file, 'previous', previous, seal.previous)
    same(file, 'first_seq', due, seal.first_seq)
    previous = `sha256:${sha256(bytes)}`
    due = seal.last_seq + 1
    seals.push({ ...seal, file, segment: `${name}.segment` })
  }
  const start = Buffer.alloc(2048), fd = openSync(path)
  try { readSync(fd, start) } finally { closeSync(fd) }
  const first = Number(/^\{"ledger_id":"[^"]*","seq":(\d+),/.exec(start.toString('latin1'))?.[1] ?? 0)
  const last = seals[seals.length - 1]
  if (last && last.first_seq === first) {
    demand(statSync(path).size >= last.length, path, 'length', `at least ${last.length} bytes, as ${last.file} says`, statSync(path).size)
    seals.pop()
  } else if (last && first) same(path, 'seq', due, first)
  return seals
}

function verifyLedger (path, given) {
  const side = `${path}.checkpoint`
  let head = null, before = START, ledgerId = null, found = null, where = path
  if (existsSync(side)) {
    const bytes = readFileSync(side)
    demand(bytes[bytes.length - 1] === 10, side, 'framing', 'a line', bytes.toString('latin1').slice(0, 60))
    head = parseCanonical(bytes.subarray(0, -1), side, 'framing')
    demand(isSignedHead(head), side, 'framing', `a head with ${SIGNED}`, keysOf(head))
  }
  for (const seal of [...sealsOf(path), null]) {
    const hash = createHash('sha256'), file = seal ? `${seal.segment} ` : ''
    let line = 0, offset = 0, firstHash = null
    demand(!seal || existsSync(seal.segment), seal?.segment, 'file', `segment ${seal?.number}`, 'nothing')
    for (const raw of linesOf(seal ? seal.segment : path, hash)) {
      where = `${file}line ${++line} (byte ${offset})`
      demand(raw, where, 'framing', 'a line that ends with LF', 'its end')
      const entry = splitLine(raw, where)
      ledgerId ??= entry.ledgerId
      same(where, 'ledger_id', ledgerId, entry.ledgerId)
      const stamp = entry.fields.timestamp.slice(0, 26)
      demand(stamp >= before.stamp, where, 'timestamp', `not before ${before.stamp}`, stamp)
      checkLink(before, entry, ledgerId, where)
      if (entry.seq === head?.seq) found = [where, entry.chainHash]
      firstHash ??= entry.chainHash
      before = { ...entry, stamp }
      offset += raw.length + 1
    }
    demand(before.batch[1] === before.batch[2], where, 'batch', `${before.batch[2]} entries`, before.batch[1])
    if (!seal) continue
    same(seal.file, 'ledger_id', ledgerId, seal.ledger_id)
    same(seal.file, 'first_chain_hash', firstHash, seal.first_chain_hash)
    same(seal.file, 'last_seq', before.seq, seal.last_seq)
    same(seal.file, 'last_chain_hash', before.chainHash, seal.last_chain_hash)
    same(seal.file, 'length', offset, seal.length)
    same(seal.file, 'sha256', `sha256:${hash.digest('hex')}`, seal.sha256)
  }
  demand(head || !given || !before.seq, path, 'checkpoint', 'a signed head', 'none')
  const signed = head ? `; entry ${head.seq} signed by ${checkHead(head, side, given)}` : '; no signed head'
  if (head) {
    if (ledgerId) same(side, 'ledger_id', ledgerId, head.ledger_id)
    demand(found, `line ${before.seq + 1}`, 'end', `at least ${head.seq} entries, as the signed head says`, `${before.seq} entries`)
    same(found[0], 'chain_hash', head.chain_hash, found[1])
  }
  return `${before.seq} entries, head ${before.chainHash}${signed}`
}

// --- a bundle ---------------------------------------------------------------------------------------------------------------
function checkPart (part, given) {
  demand(keysOf(part) === 'before,head,ledger_id,lines,rows' && typeof part.ledger_id === 'string', 'bundle', 'ledgers', 'before, head, ledger_id, lines, rows', keysOf(part))
  const { ledger_id: id, head } = part
  const isBatch = (value) => Array.isArray(value) && value.length === 3 && value.every(isCount) && value[1] <= value[2]
  const rows = new Map(), bodies = new Map()
  const signed = isSignedHead(head)
  if (!signed) {
    demand(keysOf(head) === 'chain_hash,ledger_id,seq', `${id} head`, 'form', 'chain_hash, ledger_id, seq', keysOf(head))
    demand(!given, `${id} head`, 'sig', 'a signature by the given key', 'none')
  }
  same(`${id} head`, 'ledger_id', id, head.ledger_id)
  const by = signed ? checkHead(head, `${id} head`, given) : 'nobody, its head is not signed'
  let before = START, day = '', stamp = '', last = 0
  if (part.before !== null) {
    const { batch, chain_hash: chainHash, seq } = part.before
    demand(keysOf(part.before) === 'batch,chain_hash,seq' && isCount(seq) && isHash(chainHash) && isBatch(batch), id, 'before', 'batch, chain_hash, seq', part.before)
    before = { seq, batch, chainHash }
  }
  demand(Array.isArray(part.rows) && part.rows.length, id, 'rows', 'the chain up to the head', 'none')
  for (const row of part.rows) {
    const where = `${id} row ${before.seq + 1}`
    demand(Array.isArray(row) && row.length === 5 && isBatch(row[2]) && isHash(row[3]) && isHash(row[4]), where, 'form', 'seq, entry_id, batch, entry_hash, chain_hash', row)
    const [seq, entryId, batch, entryHash, chainHash] = row
    const dated = /^E-(\d{4}-\d\d-\d\d)-\d{12,}$/.exec(entryId)
    demand(dated && dated[1] >= day && entryId.slice(13) === String(before.seq + 1).padStart(12, '0'), where, 'entry_id', `E-(date)-${before.seq + 1}`, entryId)
    checkLink(before, { seq, entryId, batch, entryHash, chainHash }, id, where)
    rows.set(seq, row)
    before = { seq, batch, chainHash }
    day = dated[1]
  }
  same(`${id} head`, 'seq', before.seq, head.seq)
  same(`${id} head`, 'chain_hash', before.chainHash, head.chain_hash)
  demand(before.batch[1] === before.batch[2], `${id} row ${before.seq}`, 'batch', 'the end of a commit', before.batch)
  demand(Array.isArray(part.lines) && part.lines.every((line) => typeof line === 'string'), id, 'lines', 'lines of the ledger', part.lines)
  for (const line of part.lines) {
    const entry = splitLine(Buffer.from(line), `${id} line after entry ${last}`)
    const where = `${id} entry ${entry.seq}`
    same(where, 'ledger_id', id, entry.ledgerId)
    demand(entry.seq > last && rows.has(entry.seq), where, 'seq', `an entry of the chain, after ${last}`, entry.seq)
    same(where, 'line', rows.get(entry.seq), [entry.seq, entry.entryId, entry.batch, entry.entryHash, entry.chainHash])
    demand(entry.fields.timestamp.slice(0, 26) >= stamp, where, 'timestamp', `not before ${stamp}`, entry.fields.timestamp)
    last = entry.seq
    stamp = entry.fields.timestamp.slice(0, 26)
    bodies.set(entry.seq, entry)
  }
  return { id, rows, bodies, by: `${id} up to entry ${head.seq}: ${by}`, key: signed ? head.public_key : null }
}

// Whether it is the evidence of its turn, with the very entries of the executor that the turn's trace hash was taken over.
function checkTurn (session, turn, parts) {
  const entriesOf = (kind) => parts.filter((part) => part.id.startsWith(kind)).flatMap((part) => [...part.bodies.values()])
  const about = (type, id) => entriesOf('HO2M:').map((entry) => entry.fields).filter((each) => each.entry_type === type && each.entity_id === id)
  for (const [type, id] of [['SESSION_START', session], ['TURN_STARTED', turn]]) {
    const found = about(type, id)
    same(turn, type, 1, found.length)
    same(turn, `${type} session_id`, session, found[0].payload.session_id)
  }
  const [end] = about('TURN_COMPLETED', turn)
  if (!end) return ['the turn was not completed, so no trace hash is on record']
  const trace = entriesOf('HO1M:').filter((entry) => entry.fields.payload.turn_id === turn)
  same(turn, 'trace_hash', end.payload.trace_hash, `sha256:${sha256(Buffer.concat(trace.map((entry) => entry.body)))}`)
  return []
}

function * refsIn (value, name) {
  if (isObject(value) && keysOf(value) === 'entry_hash,entry_id,ledger_id' && Object.values(value).every((each) => typeof each === 'string')) yield [name, value]
  else if (Array.isArray(value)) for (const item of value) yield * refsIn(item, name)
  else if (isObject(value)) for (const key of Object.keys(value)) yield * refsIn(value[key], key)
}

// A reference into a chain that the bundle holds must name what stands there. Those to message, output and projection must be shown.
function checkRefs (parts) {
  let outside = 0
  for (const { id, bodies } of parts) {
    for (const { seq, fields } of bodies.values()) {
      for (const [name, ref] of refsIn(fields.payload, '')) {
        const entryId = ref.entry_id.replace(/\.\d\d$/, '') // one event of a decision that is a single entry
        const target = parts.find((part) => part.id === ref.ledger_id)
        const number = Number(/^E-\d{4}-\d\d-\d\d-(\d{12,})$/.exec(entryId)?.[1] ?? 0)
        const where = `${id} entry ${seq}`
        const isNeeded = ['projection_ref', 'user_message_ref', 'output_ref'].includes(name)
        demand(!isNeeded || target?.bodies.has(number), where, name, `${ref.ledger_id} ${entryId} in the bundle`, 'not there')
        const row = target?.rows.get(number)
        if (row) same(where, name, [row[1], row[3]], [entryId, ref.entry_hash])
        else outside += 1
      }
    }
  }
  return outside ? [`${outside} references lead out of the bundle`] : []
}

function checkProjections (parts, given) {
  const known = new Map((given ? [given] : parts.map((part) => part.key).filter(Boolean)).map((key) => [signerOf(key), key]))
  const notes = []
  for (const { id, bodies } of parts) {
    for (const { seq, fields: { payload } } of bodies.values()) {
      const { authority, ...rest } = payload
      if (!isObject(authority) || (authority.sig ?? null) === null) continue
      const where = `${id} entry ${seq}`
      if (!known.has(authority.signer)) notes.push(`${where}: signed by ${authority.signer}, whose key is not known here`)
      else demand(isSigned(known.get(authority.signer), canonical(rest), authority.sig), where, 'authority.sig', `a signature by ${authority.signer} over this payload`, authority.sig)
    }
  }
  return notes
}

function verifyBundle (bytes, given) {
  demand(bytes[bytes.length - 1] === 10, 'bundle', 'form', 'one object of canonical JSON and a line feed', 'no line feed')
  const bundle = parseCanonical(bytes.subarray(0, -1), 'bundle', 'form')
  demand(keysOf(bundle) === 'entries,format,ledgers,session_id,turn_id' && bundle.format === 'kitchener-proof/1' && Array.isArray(bundle.ledgers), 'bundle', 'format', 'kitchener-proof/1', bundle.format ?? keysOf(bundle))
  const parts = bundle.ledgers.map((part) => checkPart(part, given))
  same('bundle', 'ledgers', parts.length, new Set(parts.map((part) => part.id)).size)
  const entries = parts.reduce((sum, part) => sum + part.bodies.size, 0)
  same('bundle', 'entries', entries, bundle.entries)
  const notes = [...checkTurn(bundle.session_id, bundle.turn_id, parts), ...checkRefs(parts), ...checkProjections(parts, given)]
  return [`${entries} entries of turn ${bundle.turn_id}`, ...parts.map((part) => `vouched for: ${part.by}`), ...notes.map((note) => `note: ${note}`)].join('\n         ')
}

// --- the command line -------------------------------------------------------------------------------------------------------
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
