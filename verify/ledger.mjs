// A whole ledger: its segments and their seals, its own file, and the signed head beside it.
import { createHash } from 'node:crypto'
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readSync, statSync } from 'node:fs'
import {
  checkHead, checkLink, demand, isCount, isHash, isSignedHead, keysOf, parseCanonical, same, sha256, SIGNED, splitLine,
  START
} from './entry.mjs'

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

export function verifyLedger (path, given) {
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
