#!/usr/bin/env node
// Verifies Kitchener's ledgers and proof bundles with nothing but Node's own library (18 or newer). It shares no code
// with Kitchener: two programs must agree on every verdict. docs/proof.md says why what is checked is enough.
//
//   node verify.mjs [--public-key HEX] FILE...      one line per file; exits with 0 if all are right, 1 if not
//
// FILE is a ledger (with its FILE.segments and FILE.checkpoint) or a bundle made by `kitchener ledger proof`.
import { createHash, verify } from 'node:crypto'
import * as fs from 'node:fs'

// --- Forms, as regular expressions. What they leave open is compared with what it has to be, further below. ---------
const COUNT = '[1-9]\\d{0,14}', HASH = '"sha256:[0-9a-f]{64}"', KEY = '"[0-9a-f]{64}"', SIG = '"[0-9a-f]{128}"'
const NAME = '"[ !#-[\\]-{}~]+"' // printable ASCII without bar, quote and backslash
const BATCH = `\\[${COUNT},${COUNT},${COUNT}\\]` // number of the commit, place of the entry in it, entries in it
const STAMP = '\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{6}(Z|\\+00:00)'
const ENTRY_ID = 'E-\\d{4}-\\d\\d-\\d\\d-(\\d{12,})'
const fields = (forms) => Object.entries(forms).map(([field, form]) => `"${field}":${form}`)
const record = (forms) => `{${fields(forms).sort().join()}}`
const LINK = { seq: COUNT, entry_id: `"${ENTRY_ID}"`, batch: BATCH, entry_hash: HASH, chain_hash: HASH }
const LINE = `({${fields({ ledger_id: NAME, ...LINK }).join()}),"entry":{.*}}`
const ROW = `\\[${Object.values(LINK).join()}\\]`
const BEFORE = `null|${record({ seq: COUNT, batch: BATCH, chain_hash: HASH })}`
const HEAD = { ledger_id: NAME, seq: COUNT, chain_hash: HASH, timestamp: NAME, signer: NAME, public_key: KEY, sig: SIG }
const SPAN = { first_seq: COUNT, last_seq: COUNT, first_chain_hash: HASH, last_chain_hash: HASH, length: COUNT }
const SEAL = { format: '"kitchener-seal/1"', ledger_id: NAME, number: COUNT, previous: HASH, ...SPAN, sha256: HASH }
const START = { seq: 0, batch: [0, 1, 1], chain_hash: `sha256:${'0'.repeat(64)}`, time: '' } // what entry 1 follows

// --- Finding fault: what is not as expected, or cannot even be looked at, ends in an error, which refuses the file. --
class Misfit extends Error { name = '' }
const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? 'nothing').slice(0, 300)
function demand (isSo, where, field, expected, found) {
  if (!isSo) throw new Misfit(`${where}: ${field}: expected ${shown(expected)}, found ${shown(found)}`)
}
function same (where, expected, found) {
  const isSame = (field) => JSON.stringify(expected[field]) === JSON.stringify(found[field])
  for (const field of Object.keys(expected)) demand(isSame(field), where, field, expected[field], found[field])
}
const isObject = (value) => value instanceof Object && !Array.isArray(value)
function hasFields (where, field, names, value) {
  demand(isObject(value) && Object.keys(value).join(' ') === names, where, field, names, value)
}
const match = (form, text) => new RegExp(`^(?:${form})$`).exec(text)
const fits = (where, field, form, value) => demand(match(form, canonical(value)), where, field, form, value)

// --- Bytes ----------------------------------------------------------------------------------------------------------
const hash = (data) => `sha256:${createHash('sha256').update(data).digest('hex')}`

// RFC 8785: JSON as JavaScript writes it, the keys sorted by UTF-16 units, which is how JavaScript sorts text.
function canonical (value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`
  const field = (key) => `${canonical(key)}:${canonical(value[key])}`
  if (isObject(value)) return `{${Object.keys(value).sort().map(field).join()}}`
  const isExact = !Number.isInteger(value) || Number.isSafeInteger(value) || Math.abs(value) >= 1e21
  return isExact ? JSON.stringify(value) : 'a number that others may read as another'
}
const LONE_SURROGATE = /(?<!\\)(?:\\\\)*\\ud[89a-f]/ // is no text
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
function parse (bytes, where, end = '\n') {
  let text, value
  try { value = JSON.parse(text = utf8.decode(bytes)) } catch { text = '' }
  const isWritten = text === canonical(value) + end && !LONE_SURROGATE.test(text) // so no byte is unguarded
  demand(isWritten, where, 'framing', 'canonical JSON (RFC 8785)', bytes.toString('latin1', 0, 60))
  return value
}

// --- Entries, and the chain they stand in ---------------------------------------------------------------------------
const entryId = (day, seq) => `E-${day}-${String(seq).padStart(12, '0')}`
function readLine (bytes, where) {
  const [, envelope] = match(LINE, bytes.toString('latin1')) ?? []
  demand(envelope, where, 'framing', 'a line of a ledger', bytes.toString('latin1', 0, 60))
  const link = JSON.parse(`${envelope}}`), body = bytes.subarray(envelope.length + ',"entry":'.length, -1)
  same(where, { entry_hash: link.entry_hash }, { entry_hash: hash(body) })
  const entry = parse(body, where, ''), { payload, timestamp: time } = entry
  hasFields(where, 'entry', 'entity_id entry_type payload timestamp', entry)
  demand(isObject(payload), where, 'payload', 'an object', payload)
  const readBack = new Date(Date.parse(time) || 0).toISOString().slice(0, 19) // 30 February reads back as 2 March
  demand(match(STAMP, time) && time.startsWith(readBack), where, 'timestamp', 'UTC with microseconds', time)
  same(where, { entry_id: entryId(time.slice(0, 10), link.seq) }, link)
  return { ...link, ...entry, where, body, time: time.slice(0, 26) }
}

// All that a link says, but for its day, entry hash and the size of a new commit, follows from the link before it.
async function checkChain (links, before, each) {
  for await (const link of links) {
    const { where, entry_id, entry_hash } = link, day = entry_id.slice(2, 12), time = link.time ?? day
    const ledger_id = before.ledger_id ?? link.ledger_id, seq = before.seq + 1, [number, place, size] = before.batch
    const batch = place === size ? [number + 1, 1, link.batch[2]] : [number, place + 1, size]
    const chain_hash = hash(`kitchener/1|${before.chain_hash}|${ledger_id}|${seq}|${entry_id}|${entry_hash}`)
    same(where, { ledger_id, seq, entry_id: entryId(day, seq), batch, chain_hash }, link)
    demand(time >= before.time.slice(0, time.length), where, 'timestamp', `not before ${before.time}`, time)
    each(link)
    before = { ...link, time: time > before.time ? time : before.time } // of a link without entry only the day is known
  }
  const [number, place, size] = before.batch // a place beyond the size is found here, for it never becomes the size
  demand(place === size, before.where, 'batch', `${size} entries in commit ${number}`, place)
  return before
}

// --- Signatures -----------------------------------------------------------------------------------------------------
const signerOf = (key) => `ed25519:${hash(Buffer.from(key, 'hex')).slice(7, 23)}`
function checkSig (where, field, key, data, sig) {
  const der = Buffer.from(`302a300506032b6570032100${key}`, 'hex') // what X.509 puts before 32 bytes of Ed25519
  const bytes = Buffer.from(match(SIG, `"${sig}"`) ? sig : '', 'hex')
  const isSigned = verify(null, Buffer.from(data), { key: der, format: 'der', type: 'spki' }, bytes)
  demand(isSigned, where, field, `a signature by ${signerOf(key)} over this`, sig)
}
function checkHead (where, head, given) {
  fits(where, 'head', record(HEAD), head)
  const { ledger_id, seq, chain_hash, timestamp, public_key, sig } = head, signer = signerOf(public_key)
  same(where, { signer, public_key: given ?? public_key }, head)
  checkSig(where, 'sig', public_key, `kitchener/1/head|${ledger_id}|${seq}|${chain_hash}|${timestamp}`, sig)
  return `signed by ${signer} (${given ? 'the given key' : 'a key it names itself'}), on ${timestamp}`
}

// --- A whole ledger -------------------------------------------------------------------------------------------------
// The entries of a file of any size, one by one; at the end, what its seal must say of it.
async function * entriesOf (path, name) {
  const sha = createHash('sha256'), where = () => `${name}line ${line} (byte ${length})`
  let rest = Buffer.alloc(0), line = 1, length = 0, first, last = START
  for await (const piece of fs.createReadStream(path, { highWaterMark: 1 << 20 })) {
    sha.update(piece)
    rest = Buffer.concat([rest, piece])
    for (let end; (end = rest.indexOf('\n') + 1) > 0; rest = rest.subarray(end), line += 1, length += end) {
      const entry = readLine(rest.subarray(0, end - 1), where())
      yield entry
      first ??= entry
      if (entry.batch[1] === entry.batch[2]) last = entry // a segment ends where a commit does
    }
    if (rest.length > 65 << 20) break // longer than an entry can be
  }
  demand(!rest.length, where(), 'framing', 'a line that ends with LF', rest.toString('latin1', 0, 60))
  const span = { last_seq: last.seq, first_chain_hash: first?.chain_hash, last_chain_hash: last.chain_hash, length }
  return { ledger_id: last.ledger_id, ...span, sha256: `sha256:${sha.digest('hex')}` }
}
async function * entriesOfAll (path) {
  const folder = `${path}.segments`, names = fs.existsSync(folder) ? fs.readdirSync(folder) : []
  const count = names.reduce((most, name) => Math.max(most, match('(\\d{6,})\\.(seal|segment)', name)?.[1] ?? 0), 0)
  const [, begin] = /^{"ledger_id":"[^"]*","seq":(\d+),/.exec(startOf(path)) ?? []
  let ledger_id, first_seq = 1, previous = START.chain_hash
  for (let number = 1; number <= count; number++) {
    const name = `${folder}/${String(number).padStart(6, '0')}`, file = `${name}.seal`
    const bytes = fs.readFileSync(file), seal = parse(bytes, file)
    fits(file, 'seal', record(SEAL), seal)
    same(file, { number, ledger_id: ledger_id ?? seal.ledger_id, previous, first_seq }, seal)
    if (number === count && Number(begin) === first_seq) { // a draft: its entries are still in the ledger's own file
      const { size } = fs.statSync(path)
      demand(seal.last_seq >= first_seq, file, 'last_seq', `at least ${first_seq}`, seal.last_seq)
      demand(size >= seal.length, path, 'length', `at least ${seal.length} bytes, as ${file} says`, size)
    } else same(file, yield * entriesOf(`${name}.segment`, `${name}.segment `), seal)
    ledger_id = seal.ledger_id
    first_seq = seal.last_seq + 1
    previous = hash(bytes)
  }
  yield * entriesOf(path, '')
}
async function verifyLedger (path, given) {
  const side = `${path}.checkpoint` // read before the ledger, which may be growing
  const head = fs.existsSync(side) ? parse(fs.readFileSync(side), side) : null, wanted = head?.seq ?? 0
  const nobody = 'no signed head, so a cut end or a chain made anew would not show'
  const vouched = head ? `entry ${wanted} ${checkHead(side, head, given)}` : nobody
  const last = await checkChain(entriesOfAll(path), START, (entry) => {
    if (entry.seq === wanted) same(entry.where, { chain_hash: head.chain_hash, ledger_id: head.ledger_id }, entry)
  })
  const end = `at least ${wanted} entries, as the signed head says`
  demand(last.seq >= wanted, `line ${last.seq + 1}`, 'end', end, `${last.seq} entries`)
  demand(head || !given || !last.seq, path, 'checkpoint', 'a signed head', 'none')
  return `${last.seq} entries, head ${last.chain_hash}; ${vouched}`
}

// --- The evidence of one turn ---------------------------------------------------------------------------------------
// One ledger's part: the chain up to a head, and some of its entries. `links` gets them all, by ledger and number.
async function checkPart (part, given, links) {
  hasFields('bundle', 'ledgers', 'before head ledger_id lines rows', part)
  const { ledger_id: id, before, rows, lines, head } = part, where = `${id} head`
  const isText = (line) => typeof line === 'string'
  demand(Array.isArray(lines) && lines.every(isText), id, 'lines', 'lines of the ledger', lines)
  demand(Array.isArray(rows) && rows.length, id, 'rows', 'the chain up to the head', rows)
  const entries = lines.map((line, place) => readLine(Buffer.from(line), `${id} line ${place + 1}`))
  const chain = rows.map((row) => {
    fits(id, 'row', ROW, row)
    const [seq, entry_id, batch, entry_hash, chain_hash] = row, where = `${id} entry ${seq}`
    const link = { ledger_id: id, seq, entry_id, batch, entry_hash, chain_hash }
    if (entries[0]?.seq !== seq) return { ...link, where }
    same(where, link, entries[0])
    return { ...entries.shift(), where }
  })
  demand(!entries.length, id, 'lines', 'entries of the chain, in its order', entries[0]?.entry_id)
  fits(id, 'before', BEFORE, before)
  const last = await checkChain(chain, { ...START, ...before }, (link) => links.set(`${id} ${link.seq}`, link))
  if (!given && !head?.sig) hasFields(where, 'head', 'chain_hash ledger_id seq', head)
  same(where, { ledger_id: id, seq: last.seq, chain_hash: last.chain_hash }, head)
  const vouched = given || head.sig ? checkHead(where, head, given) : 'nobody, its head is not signed'
  return `vouched for: ${id} up to entry ${head.seq}: ${vouched}`
}

// It is the evidence of its turn, with the very entries of the executor that the turn's trace hash was taken over.
function * checkTurn ({ session_id, turn_id }, entries) {
  const of = (kind) => entries.filter((entry) => entry.ledger_id.startsWith(kind))
  const about = (type, id) => of('HO2M:').filter((entry) => entry.entry_type === type && entry.entity_id === id)
  for (const [type, id] of [['SESSION_START', session_id], ['TURN_STARTED', turn_id]]) {
    same(turn_id, { [type]: [session_id] }, { [type]: about(type, id).map((entry) => entry.payload.session_id) })
  }
  const trace = of('HO1M:').filter((entry) => entry.payload.turn_id === turn_id).map((entry) => entry.body)
  const [end] = about('TURN_COMPLETED', turn_id)
  if (end) same(turn_id, { trace_hash: end.payload.trace_hash }, { trace_hash: hash(Buffer.concat(trace)) })
  else yield 'the turn was not completed, so no trace hash is on record'
}

// What a reference names stands there, if its chain is here; the entries that these three name have to be shown.
const SHOWN = ['projection_ref', 'user_message_ref', 'output_ref']
function * refsIn (value, name) {
  const isRef = isObject(value) && Object.keys(value).join() === 'entry_hash,entry_id,ledger_id'
  if (isRef && Object.values(value).every((each) => typeof each === 'string')) yield { name, ...value }
  else if (value instanceof Object) for (const key in value) yield * refsIn(value[key], isObject(value) ? key : name)
}
function * checkRefs (entries, links) {
  let outside = 0
  for (const { where, payload } of entries) {
    for (const { name, ledger_id, entry_id, entry_hash } of refsIn(payload, '')) {
      const id = entry_id.replace(/\.\d\d$/, ''), seq = match(ENTRY_ID, id)?.[1] // .01 is a part of the entry
      const link = links.get(`${ledger_id} ${Number(seq)}`)
      demand(link?.body || !SHOWN.includes(name), where, name, `${ledger_id} ${id} in the bundle`, 'not there')
      if (link) same(where, { [name]: [link.entry_id, link.entry_hash] }, { [name]: [id, entry_hash] })
      else outside += 1
    }
  }
  if (outside) yield `${outside} references lead out of the bundle`
}
function * checkProjections (entries, heads) {
  const keys = new Map(heads.map((head) => [head.signer, head.public_key]))
  for (const { where, payload: { authority, ...payload } } of entries) {
    const { signer, sig = null } = authority ?? {}, key = keys.get(signer)
    if (sig !== null && key) checkSig(where, 'authority.sig', key, canonical(payload), sig)
    else if (sig !== null) yield `${where}: signed by ${signer}, whose key is not known here`
  }
}
async function verifyBundle (path, given) {
  const bundle = parse(fs.readFileSync(path), 'bundle'), { ledgers, session_id, turn_id } = bundle
  hasFields('bundle', 'form', 'entries format ledgers session_id turn_id', bundle)
  demand(Array.isArray(ledgers), 'bundle', 'ledgers', 'a list', ledgers)
  const links = new Map(), told = []
  for (const part of ledgers) told.push(await checkPart(part, given, links))
  const entries = [...links.values()].filter((link) => link.body), heads = ledgers.map((part) => part.head)
  const ids = ledgers.map((part) => part.ledger_id), due = { entries: entries.length, format: 'kitchener-proof/1' }
  same('bundle', { ...due, ledgers: [...new Set(ids)] }, { ...bundle, ledgers: ids })
  const notes = [checkTurn(bundle, entries), checkRefs(entries, links), checkProjections(entries, heads)]
  told.push(...notes.flatMap((some) => [...some]).map((note) => `note: ${note}`))
  return [`${entries.length} entries of turn ${turn_id}`, ...told].join('\n         ')
}

// --- The command ----------------------------------------------------------------------------------------------------
function startOf (path) {
  const file = fs.openSync(path), bytes = Buffer.alloc(2048)
  try { return bytes.toString('latin1', 0, fs.readSync(file, bytes)) } finally { fs.closeSync(file) }
}
const paths = process.argv.slice(2), at = paths.indexOf('--public-key'), [, given] = at >= 0 ? paths.splice(at, 2) : []
if (!paths.length || (at >= 0 && !match(KEY, `"${given}"`))) {
  console.error('usage: node verify.mjs [--public-key HEX] FILE...   (64 lower-case hex digits; ledgers and bundles)')
  process.exit(2)
}
for (const path of paths) {
  try {
    const told = await (startOf(path).startsWith('{"entries":') ? verifyBundle : verifyLedger)(path, given)
    console.log(`ok       ${path}: ${told}`)
  } catch (error) {
    console.log(`damaged  ${path}: ${String(error).replace(/[\x00-\x1f\x7f-\x9f]/g, '\ufffd')}`)
    process.exitCode = 1
  }
}
