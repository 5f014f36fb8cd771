// The evidence of one turn, cut out of its ledgers: the chain up to a head, and the entries of the turn.
import {
  canonical, checkHead, checkLink, demand, isCount, isHash, isObject, isSigned, isSignedHead, keysOf, parseCanonical, same,
  sha256, signerOf, splitLine, START
} from './entry.mjs'

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

export function verifyBundle (bytes, given) {
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
