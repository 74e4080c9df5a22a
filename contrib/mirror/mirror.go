// Keep a copy of this machine's rules, whoever changes them, and print each change.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
)

type Rule struct{ Key, Rule string }
type Status struct {
	Rule struct{ Id, Summary string }
}
type Document struct {
	Ok                                                  *bool
	Seq                                                 int
	Event, Key, Id, Change, Cursor, Error, Reason, Rule string
	Rules                                               []Rule
	Own                                                 []Status `json:"fwtop_rules"`
}

func main() {
	path := append(os.Args, "/run/fwtop/api.sock")[1]
	stream, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(stream, `{"verb": "watch", "number": 1}`)
	rules, documents := map[string]string{}, json.NewDecoder(stream)
	for doc := (Document{}); documents.Decode(&doc) == nil; doc = (Document{}) {
		if doc.Ok != nil && !*doc.Ok {
			panic(doc.Reason + ": " + doc.Error)
		}
		key := doc.Key + doc.Id // a document has at most one of them
		switch doc.Event + doc.Change {
		case "state":
			clear(rules)
			for _, rule := range doc.Rules {
				rules[rule.Key] = rule.Rule
			}
			for _, status := range doc.Own {
				rules[status.Rule.Id] = status.Rule.Summary
			}
		case "rule_added", "rule_changed", "fwtop_ruleadded", "fwtop_rulechanged":
			rules[key] = doc.Rule
		case "rule_removed", "fwtop_ruleremoved":
			delete(rules, key)
		}
		if doc.Ok == nil {
			fmt.Println(doc.Seq, doc.Event, cmp.Or(key, "-"), len(rules))
		}
	}
}
