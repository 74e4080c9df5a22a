// Keep a copy of this machine's rules, whoever changes them, and print each change.
const net = require("net"), readline = require("readline"), rules = new Map();
const stream = net.connect(process.argv[2] || "/run/fwtop/api.sock");
stream.write(JSON.stringify({ verb: "watch", number: 1 }) + "\n");
readline.createInterface({ input: stream }).on("line", (line) => {
  const doc = JSON.parse(line), key = doc.key ?? doc.id;
  if (doc.ok === false) throw new Error(`${doc.reason}: ${doc.error}`);
  if (doc.event === "state") rules.clear();
  for (const r of doc.rules ?? []) rules.set(r.key, r.rule);
  for (const r of doc.fwtop_rules ?? []) rules.set(r.rule.id, r.rule.summary);
  if (/^rule_(added|changed)$/.test(doc.event) || /^(added|changed)$/.test(doc.change)) rules.set(key, doc.rule);
  if (doc.event === "rule_removed" || doc.change === "removed") rules.delete(key);
  if (doc.event) console.log(doc.seq, doc.event, key ?? "-", rules.size);
});
