// Keep a copy of this machine's rules, whoever changes them, and print each change.
const net = require("net"), readline = require("readline"), rules = new Map();
const stream = net.connect(process.argv[2] || "/run/fwtop/api.sock");
stream.write(JSON.stringify({ verb: "watch", number: 1 }) + "\n");
readline.createInterface({ input: stream }).on("line", (line) => {
  const doc = JSON.parse(line);
  if (doc.ok === false) throw new Error(`${doc.reason}: ${doc.error}`);
  const key = doc.key ?? doc.id;
  if (doc.event === "state") for (const r of [...doc.rules, ...doc.fwtop_rules]) rules.set(r.key ?? r.rule.id, r.rule);
  if (doc.event === "rule_added" || doc.change === "added") rules.set(key, doc.rule);
  if (doc.event === "rule_removed" || doc.change === "removed") rules.delete(key);
  if (doc.event) console.log(doc.seq, doc.event, key, rules.size);
});
