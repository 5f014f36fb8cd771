#!/usr/bin/env node
// Verifies Kitchener's ledgers and proof bundles with nothing but Node's own library (18 or newer). See docs/proof.md.
//   node verify.mjs [--public-key HEX] FILE...      one line per file; exits with 0 if all are right, 1 if not
// FILE is a ledger, beside which stand its FILE.segments and FILE.checkpoint, or a bundle of `kitchener ledger proof`.
// Whatever follows from what came before is worked out anew and compared; an error of any kind refuses the file.
import { createHash, verify } from 'node:crypto'
import * as fs from 'node:fs'

// How things are written. What these forms leave open is compared, further below, with what it has to be.
const NUM = '[1-9][0-9]{0,15}', BATCH = `\\[${NUM},${NUM},${NUM}\\]`, HASH = '"sha256:[0-9a-f]{64}"'
const NAME = '"[ !#-[\\]-{}~]+"', ID = 'E-\\d{4}-\\d\\d-\\d\\d-(\\d{12,16})', KEY = '"[0-9a-f]{64}"'
const form = (fields) => RegExp(`^{${Object.entries(fields).map(([name, value]) => `"${name}":${value}`).join()}}$`)
const LINK = form({ ledger_id: NAME, seq: NUM, entry_id: `"${ID}"`, batch: BATCH, entry_hash: HASH, chain_hash: HASH })
const BEFORE = form({ batch: BATCH, chain_hash: HASH, seq: NUM })
const HEAD = { chain_hash: HASH, ledger_id: NAME, seq: NUM }, TREE = { segments: NUM, tree: HASH }
const sorted = (fields) => Object.fromEntries(Object.entries(fields).sort())
const VOUCHER = { public_key: KEY, sig: '"[0-9a-f]{128}"', signer: NAME, timestamp: NAME }
const HEADS = [{}, { commits: HASH }, { commits: HASH, ...TREE }].map((more) => form(sorted({ ...HEAD, ...VOUCHER, ...more })))
const UNSIGNED = form(sorted({ ...HEAD, ...TREE })), PATH = RegExp(`^\\[(?:${HASH}(?:,${HASH})*)?]$`), BOUNDS = RegExp(`^\\[${BATCH}(?:,${BATCH})*]$`)
const SPAN = { ledger_id: NAME, number: NUM, first_seq: NUM, last_seq: NUM, first_chain_hash: HASH, last_chain_hash: HASH }
const SEALS = [{ format: '"kitchener-seal/1"' }, { format: '"kitchener-seal/2"', tree: HASH }]
  .map((more) => form(sorted({ ...SPAN, length: NUM, sha256: HASH, previous: HASH, ...more })))
const MOMENT = /^(?!0000)\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}(Z|\+00:00)$/
const NAMED = RegExp(`^(${ID})(?:\\.\\d\\d)?$`) // a reference may name a piece of an entry
// Which fields of which entries hold references; what looks like one anywhere else is somebody's words.
const REFS = new Map(Object.entries({
  TURN_COMPLETED: ['projection_ref', 'tool_results', 'user_message_ref'], WO_PLANNED: ['attention', 'input_refs'], WO_COMPLETED: ['output_ref'],
  LIFECYCLE_VOIDED: ['ref'], LLM_CALL: ['part_refs'], CONFLICT_FLAG: ['involved_refs', 'proof_refs'],
  PROJECTION_COMPUTED: ['eligible_refs', 'flags', 'proof_refs', 'suppressed_refs', 'visible_refs']
}))
const START = { seq: 0, batch: [0, 1, 1], chain_hash: `sha256:${'0'.repeat(64)}` } // what entry 1 follows
const LEVELS = 254 // the deepest that arrays and objects may stand in each other

const hash = (data) => `sha256:${createHash('sha256').update(data).digest('hex')}`
const printable = (text) => text.replace(/[\p{C}\u2028\u2029]/gu, '\ufffd')
const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? 'nothing').slice(0, 300)
function demand (where, field, expected, found, isSo = JSON.stringify(expected) === JSON.stringify(found)) {
  if (!isSo) throw new Error(`${where}: ${field}: expected ${shown(expected)}, found ${shown(found)}`)
}
const same = (where, expected, found) =>
  Object.keys(expected).forEach((field) => demand(where, field, expected[field], found[field]))
// RFC 8785: JSON as JavaScript writes it, the keys sorted by UTF-16 units, which is how JavaScript sorts text.
function canonical (value, level = 1) {
  if (!(value instanceof Object)) return isExact(value) ? JSON.stringify(value) : undefined
  if (level > LEVELS) throw new Error('nested too deeply')
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, level + 1)).join()}]`
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key], level + 1)}`).join()}}`
}
function isExact (value) { // not so a number of 64 bits that other readers take for an integer, which a double may not hold
  if (!Number.isInteger(value) || Number.isSafeInteger(value) || Math.abs(value) >= 1e21) return true
  const read = BigInt(JSON.stringify(value))
  return BigInt.asIntN(64, read) !== read && BigInt.asUintN(64, read) !== read
}
// Of what is no line of a ledger not a byte is told, and of a line its envelope: a path may lead to somebody's key file.
const FIELD = '"(?:seq|entry_id|batch|entry_hash|chain_hash)":(?:\\d+|\\[[\\d,]+]|"(?:E-[\\d-]+|sha256:[\\da-f]+)")'
const ENVELOPE = RegExp(`^{"ledger_id":"(?:[ !#-[\\]-{}~]+"(?:,${FIELD})*)?`)
const other = (text) => text ? `${text.length} bytes of something else` : 'nothing'
const lineOf = (text, [quoted] = ENVELOPE.exec(text) ?? []) => quoted?.slice(0, 120) ?? other(text)
function parse (bytes, where, end) { // what equals its own re-rendering has no unguarded byte
  let text, value
  try { text = canonical(value = JSON.parse(bytes)) + end } catch { text = '' }
  const isText = text && !text.replaceAll('\\\\', '').includes('\\ud') // no half of a character
  demand(where, 'framing', 'canonical JSON (RFC 8785)', other(bytes), isText && bytes.equals(Buffer.from(text)))
  return value
}

// A line of a ledger, or a row of a bundle, is a link, and a body where the entry is shown.
function entryOf (where, text, body) {
  demand(where, 'framing', 'a line of a ledger, with its LF', lineOf(text), LINK.test(text))
  const link = { ...JSON.parse(text), where }, day = link.entry_id.slice(2, 12)
  link.leaf = leafOf(text)
  if (!body) return link
  same(where, { entry_hash: link.entry_hash }, { entry_hash: hash(body) })
  const entry = parse(body, where, ''), time = String(entry.timestamp)
  const isEntry = Object.keys(entry).join() === 'entity_id,entry_type,payload,timestamp'
  const isObject = JSON.stringify({ ...entry.payload }) === JSON.stringify(entry.payload)
  demand(where, 'entry', 'entity_id, entry_type, payload and timestamp', other(body), isEntry && isObject)
  same(where, { timestamp: `${day}T${time.slice(11)}` }, entry)
  const isDay = JSON.stringify(new Date(`${time.slice(0, 19)}Z`)) === `"${time.slice(0, 19)}.000Z"`
  demand(where, 'timestamp', 'UTC with microseconds', other(time), isDay && MOMENT.test(time))
  return { ...link, ...entry, body }
}
// Time does not go back. Of an entry that is not shown, only the day is known.
function checkTime (link, before) {
  const { where, entry_id, timestamp, body } = link, past = before.moment ?? ''
  const time = body ? timestamp.slice(0, 26) : entry_id.slice(2, 12)
  demand(where, 'timestamp', `not before ${past}`, time, time >= past.slice(0, time.length))
  link.moment = time > past ? time : past
}
// All that a link says, but for its day, its entry hash and the size of a new commit, follows from the link before it.
function checkLink (link, before) {
  const { where, entry_id, entry_hash } = link, ledger_id = before.ledger_id ?? link.ledger_id, seq = before.seq + 1
  const [number, place, size] = before.batch, id = entry_id.slice(0, 13) + String(seq).padStart(12, '0')
  const batch = place === size ? [number + 1, 1, link.batch[2]] : [number, place + 1, size]
  const chain_hash = hash(`kitchener/1|${before.chain_hash}|${ledger_id}|${seq}|${entry_id}|${entry_hash}`)
  same(where, { ledger_id, seq, entry_id: id, batch, chain_hash }, link)
  checkTime(link, before)
  return link
}
function checkChain (links, before, each) {
  for (const link of links) each(before = checkLink(link, before))
  demand(before.where, 'batch', 'the end of a commit', before.batch, before.batch[1] === before.batch[2])
  return before
}
// Merkle trees as in RFC 6962: leaves and nodes are hashed apart, and a node without a neighbour goes up as it is. The leaves of
// a ledger's tree are its segments with their bounds, each the root of a tree of which the leaves are its lines without bodies.
const sha = (...parts) => createHash('sha256').update(Buffer.concat(parts)).digest()
const leafOf = (text) => sha(Buffer.of(0), Buffer.from(text)), nodeOf = (left, right) => sha(Buffer.of(1), left, right)
const textOf = (root) => `sha256:${root.toString('hex')}`
const treeOf = (head, root) => textOf(leafOf(['kitchener/1/tree', head.ledger_id, head.seq, head.chain_hash, head.segments, textOf(root)].join('|')))
const segmentOf = (id, first, last, root) => leafOf(`kitchener/1/segment|${id}|${first}|${last}|${textOf(root)}`)
function push (peaks, leaf) { // the roots of the full subtrees, each with its size, the largest first
  let size = 1
  for (; peaks.at(-1)?.[0] === size; size *= 2) leaf = nodeOf(peaks.pop()[1], leaf)
  return [...peaks, [size, leaf]]
}
const rootOf = (peaks) => peaks.map(([, root]) => root).reduceRight((right, left) => nodeOf(left, right))
function rootBetween (low, high, known, given, leaf) { // the root over leaves of which some are known
  if (!known.length) return given()
  if (high - low === 1) return leaf(low)
  let size = 1
  while (size * 2 < high - low) size *= 2
  const left = rootBetween(low, low + size, known.filter((n) => n < low + size), given, leaf)
  return nodeOf(left, rootBetween(low + size, high, known.filter((n) => n >= low + size), given, leaf))
}
const signerOf = (publicKey) => `ed25519:${hash(Buffer.from(publicKey, 'hex')).slice(7, 23)}`
function isSigned (publicKey, data, sig) {
  const key = { kty: 'OKP', crv: 'Ed25519', x: Buffer.from(publicKey, 'hex').toString('base64url') }
  return RegExp(`^${VOUCHER.sig}$`).test(JSON.stringify(sig)) && verify(null, data, { key, format: 'jwk' }, Buffer.from(sig, 'hex'))
}
function checkHead (where, head, link, given) { // `link` is the one that it vouches for
  demand(where, 'form', 'a signed head', other(JSON.stringify(head)), HEADS.some((each) => each.test(JSON.stringify(head))))
  const { ledger_id, seq, chain_hash, timestamp, public_key, commits, segments, tree } = head
  demand(where, 'end', `at least ${seq} entries, as the signed head says`, 'fewer', link !== undefined)
  same(link.where, { ledger_id, seq, chain_hash, batch: [link.batch[0], link.batch[2], link.batch[2]] }, link)
  const told = { commits, segments, tree }
  for (const name in told) demand(link.where, name, link[name], told[name], [link[name], undefined].includes(told[name]) || !link[name])
  const signer = signerOf(public_key)
  same(where, { signer, public_key: given ?? public_key }, head)
  const signed = [ledger_id, seq, chain_hash, timestamp, commits, segments, tree].filter((each) => each !== undefined).join('|')
  const data = Buffer.from(`kitchener/${tree ? 3 : commits ? 2 : 1}/head|${signed}`)
  demand(where, 'sig', `a signature by ${signer} over this`, head.sig, isSigned(public_key, data, head.sig))
  return `signed by ${signer} (${given ? 'the given key' : 'a key it names itself'}), on ${timestamp}`
}

// The manifests of a ledger's finished segments, each of which has the hash of the one before. The last one is a draft if the
// ledger's own file still begins where it does: then its segment is not finished, and a copy of it is not read.
const fileOf = (number, kind) => `${String(number).padStart(6, '0')}.${kind}`
function sealsOf (path, own) {
  const folder = `${path}.segments`, names = fs.existsSync(folder) ? fs.readdirSync(folder) : [], seals = []
  const count = names.reduce((most, name) => Math.max(most, /^(\d{6,})\.(?:seal|segment)$/.exec(name)?.[1] ?? 0), 0)
  for (let number = 1, last = { last_seq: 0, hash: START.chain_hash }; number <= count; number += 1) {
    const where = fileOf(number, 'seal'), file = `${folder}/${where}`
    demand(where, 'file', `the manifest of segment ${number}`, 'nothing', fs.existsSync(file))
    const bytes = fs.readFileSync(file), seal = parse(bytes, where, '\n'), { ledger_id, first_seq, last_seq } = seal ?? {}
    const isSeal = SEALS.some((each) => each.test(bytes.toString('latin1').slice(0, -1)))
    demand(where, 'framing', 'a manifest as it was written', other(bytes), isSeal && first_seq <= last_seq)
    same(where, { number, ledger_id: last.ledger_id ?? ledger_id, previous: last.hash, first_seq: last.last_seq + 1 }, seal)
    seals.push(last = { ...seal, hash: hash(bytes) })
  }
  const [, begin] = /^{"ledger_id":"[^"]*","seq":(\d+),/.exec(own.toString('latin1', 0, 2048)) ?? []
  if (begin !== `${seals.at(-1)?.first_seq}`) return seals
  const { length } = seals.pop(), size = own.length
  demand(path, 'length', `at least ${length} bytes, as its draft ${fileOf(seals.length + 1, 'seal')} says`, size, size >= length)
  return seals
}
// A whole ledger: the lines of its finished segments, each of which is what its manifest says, then of its own file.
function * entriesOf (path) {
  const own = fs.readFileSync(path)
  for (const seal of [...sealsOf(path, own), undefined]) {
    const name = seal && fileOf(seal.number, 'segment'), data = seal ? fs.readFileSync(`${path}.segments/${name}`) : own
    if (seal) same(name, { length: data.length, sha256: hash(data) }, seal)
    let first, link, peaks = []
    for (let at = 0, line = 1, end; at < data.length; at = end, line += 1) {
      end = data.indexOf('\n', at) + 1 || data.length
      const where = `${seal ? `${name} ` : ''}line ${line} (byte ${at})`, text = data.toString('latin1', at, end)
      const [, envelope, body] = /^({.*?),"entry":({.*})}\n$/s.exec(text) ?? ['', text, '']
      link = entryOf(where, `${envelope}}`, Buffer.from(body, 'latin1'))
      peaks = push([...peaks], link.leaf)
      first ??= link
      yield Object.assign(link, { number: seal?.number, first: first.seq, peaks })
    }
    if (!seal) continue
    const { ledger_id, seq, chain_hash, batch } = link, where = fileOf(seal.number, 'seal'), tree = seal.tree && textOf(rootOf(peaks))
    same(where, { ledger_id, last_seq: seq, first_chain_hash: first.chain_hash, last_chain_hash: chain_hash, tree }, seal)
    demand(where, 'last_seq', 'the end of a commit', batch, batch[1] === batch[2])
  }
}
function verifyLedger (path, given) {
  const side = `${path}.checkpoint`, isSigned = fs.existsSync(side)
  const { frontier, ...head } = isSigned ? parse(fs.readFileSync(side), side, '\n') : {}
  let vouched, commits = START.chain_hash, segments = [], before, count = 0
  const last = checkChain(entriesOf(path), START, (link) => {
    if (link.batch[1] === link.batch[2]) commits = hash(`kitchener/1/commits|${commits}|${link.seq}`)
    if (vouched || !isSigned) return
    const leafOfSegment = ({ ledger_id, first, seq, peaks }) => segmentOf(ledger_id, first, seq, rootOf(peaks))
    if (before && before.number !== link.number) {
      segments = push(segments, leafOfSegment(before))
      count += 1
    }
    before = link
    if (link.seq !== head.seq) return
    const root = rootOf(push([...segments], leafOfSegment(link))), tree = treeOf({ ...link, segments: count + 1 }, root)
    const frontier = [...segments, ...link.peaks].map(([, root]) => textOf(root))
    vouched = { ...link, commits, segments: count + 1, tree, frontier }
  })
  const told = `${last.seq} entries, head ${last.chain_hash}`
  const by = isSigned && checkHead(side, head, vouched, given)
  if (frontier !== undefined) same(side, { frontier: head.tree && vouched.frontier }, { frontier }) // from which the tree grows on
  if (by) return `${told}; entry ${head.seq} ${by}`
  demand(path, 'checkpoint', 'a signed head', 'none', !given || !last.seq)
  return `${told}; no signed head, so a cut end or a chain made anew would not show`
}

// The evidence of one turn. Of each ledger: the bodies of the turn's entries, and what leads from them to a head, which is the
// chain, or the hashes beside their paths in the head's tree.
function rowsOf ({ ledger_id, rows }) {
  demand(ledger_id, 'rows', 'rows of entries', rows, rows?.length > 0)
  return rows.map((row) => {
    const [seq, entry_id, batch, entry_hash, chain_hash, ...body] = row, where = `${ledger_id} entry ${seq}`
    demand(where, 'row', 'a link, and a body as text', row, body.every((text, n) => typeof text === 'string' && !n))
    const link = JSON.stringify({ ledger_id, seq, entry_id, batch, entry_hash, chain_hash })
    return entryOf(where, link, ...body.map((text) => Buffer.from(text)))
  })
}
function checkPath (section, rows) {
  const { ledger_id, head, path, segments } = section, where = `${ledger_id} head`, seqs = rows.map((link) => link.seq)
  const last = rows.reduce((before, link) => {
    if (link.seq === before.seq + 1) return checkLink(link, before)
    const id = link.entry_id.slice(0, 13) + String(link.seq).padStart(12, '0')
    demand(link.where, 'batch', 'a place in its commit', link.batch, link.batch[1] <= link.batch[2])
    demand(link.where, 'seq', `more than ${before.seq}`, link.seq, link.seq > before.seq)
    same(link.where, { entry_id: id }, link)
    checkTime(link, before)
    return link
  }, START)
  const due = { fields: ['head', 'ledger_id', 'path', 'rows', 'segments'] }, text = JSON.stringify(head)
  same(ledger_id, due, { fields: Object.keys(section) })
  demand(ledger_id, 'path', 'hashes, and the bounds of segments', path, PATH.test(JSON.stringify(path)) && BOUNDS.test(JSON.stringify(segments)))
  demand(where, 'form', 'a head with a tree', other(text), HEADS[2].test(text) || UNSIGNED.test(text))
  let used = 0, taken = 0, at = [0, 0, 0]
  const next = () => Buffer.from(path[used++].slice(7), 'hex'), bounds = new Map()
  const leaves = new Map(rows.map((link) => [link.seq, link.leaf]))
  for (const [number, first, end] of segments) { // the first begins with entry 1, the last ends with the head's, neighbours meet
    const isNext = number === at[0] + 1, isLast = number === head.segments, begins = isNext ? first === at[2] + 1 : first > at[2] + 1
    const fits = number > at[0] && number <= head.segments && first <= end && end <= head.seq && (end === head.seq) === isLast && begins
    demand(ledger_id, 'segments', 'segments in order', [number, first, end], fits)
    at = [number, first, end]
    bounds.set(number, at)
  }
  const root = rootBetween(1, head.segments + 1, [...bounds.keys()], next, (number) => {
    const [, first, end] = bounds.get(number), known = []
    while (seqs[taken] >= first && seqs[taken] <= end) known.push(seqs[taken++])
    demand(ledger_id, 'segments', 'segments with rows', `segment ${number} without`, known.length > 0)
    return segmentOf(ledger_id, first, end, rootBetween(first, end + 1, known, next, (seq) => leaves.get(seq)))
  })
  same(ledger_id, { rows: rows.length, path: path.length }, { rows: taken, path: used })
  same(where, { tree: treeOf({ ...head, ledger_id }, root) }, head)
  return { ...(last.seq === head.seq ? last : { ...head, where, batch: [1, 1, 1] }), ledger_id, shown: last.seq }
}
function checkSection (section, given, links, isEarlier) {
  const { ledger_id, before, head } = section, where = `${ledger_id} head`, isTree = section.path !== undefined && !isEarlier
  const chain = rowsOf(section), keep = (link) => links.set(`${ledger_id} ${link.seq}`, link)
  let last
  if (isTree) {
    last = checkPath(section, chain)
    chain.forEach(keep)
    demand(where, 'batch', 'the end of a commit', last.batch, last.batch[1] === last.batch[2])
    demand(where, 'seq', `at least ${last.shown}`, head.seq, head.seq >= last.shown)
  } else {
    same(ledger_id, { fields: ['before', 'head', 'ledger_id', 'rows'] }, { fields: Object.keys(section) })
    demand(ledger_id, 'before', 'batch, chain_hash, seq', before, before === null || BEFORE.test(JSON.stringify(before)))
    last = checkChain(chain, before ?? START, keep)
  }
  // Of entries that are not shown nobody can tell whose they are: their ids are told, those of neighbours as first and last.
  const edge = (step) => chain.filter((link, n) => !link.body && (!chain[n + step] || chain[n + step].body))
  const lasts = edge(1), named = edge(-1).map((first, n) => [first.entry_id, lasts[n].entry_id])
  // Where there are rows of some only, it is told by their numbers which ones are not shown.
  const shownSeqs = [chain[0].seq - 1, ...chain.filter((link) => link.body).map((link) => link.seq), last.seq + 1]
  const gaps = shownSeqs.slice(1).map((seq, n) => [shownSeqs[n] + 1, seq - 1]).filter(([from, to]) => from <= to)
  const runs = (isTree ? gaps : named).map((run) => [...new Set(run)].join(' to '))
  const told = `${ledger_id}: withheld: ${runs.join(', ') || 'nothing'}; vouched for up to entry ${last.seq}`
  if (given || head?.sig) return `${told}: ${checkHead(where, head, last, given)}`
  const more = isTree ? { segments: head.segments, tree: head.tree } : {}
  same(where, { head: sorted({ chain_hash: last.chain_hash, ledger_id, seq: last.seq, ...more }) }, section)
  return `${told}: nobody, its head is not signed`
}
const areTexts = (values) => values.every((each) => typeof each === 'string')
const isPair = (value) => Array.isArray(value) && value.length === 2 && areTexts(value)
function * refsIn (value, name) { // each reference, and the field that it stands in
  if (!(value instanceof Object)) return
  const isRef = Object.keys(value).sort().join() === 'entry_hash,entry_id,ledger_id', { ledger_id, entries } = value
  if (isRef && areTexts(Object.values(value))) yield [name, value]
  else if (typeof ledger_id === 'string' && Array.isArray(entries) && entries.every(isPair)) { // a group, in one ledger
    for (const [entry_id, entry_hash] of entries) yield [name, { ledger_id, entry_id, entry_hash }]
  } else for (const [key, item] of Object.entries(value)) yield * refsIn(item, Array.isArray(value) ? name : key)
}
// A projection has a signature of its own. Whose keys count, a signed head or an entry of HO2m says; before format 2 none had to.
function checkProjections (entries, keys, isDue) {
  const known = new Map(keys.filter((key) => RegExp(`^${KEY}$`).test(JSON.stringify(key))).map((key) => [signerOf(key), key]))
  for (const { where, entry_type, payload: { authority, ...signed } } of entries) {
    const { signer, sig } = authority ?? {}
    if (entry_type !== 'PROJECTION_COMPUTED' || (sig ?? null) === null) continue
    demand(where, 'authority.signer', 'a signer whose key is shown', signer, known.has(signer) || !isDue)
    if (!known.has(signer)) continue
    const data = Buffer.from(canonical(signed)), isRight = isSigned(known.get(signer), data, sig)
    demand(where, 'authority.sig', `a signature by ${signer} over this payload`, sig, isRight)
  }
}
const coverOf = ({ ledger_id, rows, head }) => ({ ledger_id, first: rows[0][0], end: head.seq })
function verifyBundle (path, given) {
  demand('bundle', 'size', 'at most 1 GiB', 'more', fs.statSync(path).size <= 2 ** 30)
  const bundle = parse(fs.readFileSync(path), 'bundle', '\n'), { ledgers, session_id, turn_id } = bundle
  const isEarlier = bundle.format === 'kitchener-proof/1', links = new Map()
  const told = ledgers.map((section) => checkSection(section, given, links, isEarlier)), covers = ledgers.map(coverOf)
  const entries = [...links.values()].filter((link) => link.body), ids = ledgers.map((section) => section.ledger_id)
  const format = `kitchener-proof/${isEarlier ? 1 : 2}`
  const due = { fields: 5, entries: entries.length, format, ledgers: [...new Set(ids)] }
  same('bundle', due, { ...bundle, fields: Object.keys(bundle).length, ledgers: ids })
  // It begins in its session and ends, and the executor's entries are those that its trace hash was taken over.
  const all = (type) => entries.filter((entry) => entry.entry_type === type && entry.ledger_id.startsWith('HO2M:'))
  const about = (...types) => types.flatMap(all).map((each) => [each.entity_id, each.payload.session_id])
  const begin = about('SESSION_START', 'TURN_STARTED'), end = about('TURN_COMPLETED', 'TURN_ABORTED')
  same(turn_id, { begin: [[session_id, session_id], [turn_id, session_id]], end: [[turn_id, session_id]] }, { begin, end })
  const trace = entries.filter((entry) => entry.ledger_id.startsWith('HO1M:') && entry.payload.turn_id === turn_id)
  const trace_hash = hash(Buffer.concat(trace.map((entry) => entry.body)))
  for (const { payload } of all('TURN_COMPLETED')) same(turn_id, { trace_hash: payload.trace_hash }, { trace_hash })
  // What a reference names stands there, if its chain is here. Message, answers and context have to be shown.
  for (const { where, entry_type, payload } of entries) {
    const refs = (REFS.get(entry_type) ?? []).flatMap((name) => [...refsIn(payload[name], name)])
    for (const [name, { ledger_id, entry_hash, entry_id: id }] of refs) {
      const [, entry_id = id, seq] = NAMED.exec(id) ?? []
      const link = links.get(`${ledger_id} ${+seq}`), isDue = /^(projection|user_message|output)_ref$/.test(name)
      const isHere = covers.some((each) => each.ledger_id === ledger_id && each.first <= +seq && +seq <= each.end)
      demand(where, name, `${ledger_id} ${entry_id} in the bundle`, 'not there', isDue ? link?.body : link || !isHere)
      if (link) same(where, { [name]: [link.entry_id, link.entry_hash] }, { [name]: [entry_id, entry_hash] })
    }
  }
  const declared = all('SIGNER_DECLARED').map(({ payload }) => payload.public_key)
  checkProjections(entries, [...declared, ...ledgers.map(({ head }) => head.public_key)], format.endsWith('2'))
  const how = all('TURN_ABORTED').length ? 'TURN_ABORTED, so no trace hash says which calls it made' : 'TURN_COMPLETED'
  return [`${entries.length} entries of turn ${turn_id}, ${how}`, ...told].map(printable).join('\n         ')
}

function firstBytes (path, count) {
  const file = fs.openSync(path), bytes = Buffer.alloc(count)
  try {
    return bytes.toString('latin1', 0, fs.readSync(file, bytes, 0, count, 0))
  } finally {
    fs.closeSync(file)
  }
}

const paths = process.argv.slice(2), at = paths.indexOf('--public-key'), [, given] = at >= 0 ? paths.splice(at, 2) : []
if (!paths.length || paths.some((each) => each.startsWith('--')) || (at >= 0 && !RegExp(`^${KEY}$`).test(`"${given}"`))) {
  console.error('usage: node verify.mjs [--public-key HEX] FILE...   (64 lower-case hex digits; ledgers and bundles)')
  process.exit(2)
}
for (const path of paths) {
  try {
    const isBundle = firstBytes(path, 11) === '{"entries":'
    console.log(`ok       ${printable(path)}: ${(isBundle ? verifyBundle : verifyLedger)(path, given)}`)
  } catch (error) {
    console.log(`damaged  ${printable(path)}: ${printable(error.message)}`)
    process.exitCode = 1
  }
}
