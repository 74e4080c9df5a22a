// Keep a copy of this machine's rules, whoever changes them, and print each change.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
)

type Rule struct{ Key string }
type Document struct {
	Ok                                           *bool
	Seq                                          int
	Event, Key, Id, Change, Cursor, Error, Reason string
	Rules                                        []Rule
	Status                                       struct{ State string }
}

func main() {
	path := append(os.Args, "/run/fwtop/api.sock")[1]
	stream, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(stream, `{"verb": "watch", "number": 1}`)
	rules, documents := map[string]bool{}, json.NewDecoder(stream)
	for doc := (Document{}); documents.Decode(&doc) == nil; doc = (Document{}) {
		if doc.Ok != nil && !*doc.Ok {
			panic(doc.Reason + ": " + doc.Error)
		}
		for _, rule := range doc.Rules {
			rules[rule.Key] = true
		}
		if doc.Event == "rule_added" || doc.Change == "added" {
			rules[doc.Key+doc.Id] = true
		} else if doc.Event == "rule_removed" || doc.Change == "removed" {
			delete(rules, doc.Key+doc.Id)
		}
		if doc.Ok == nil {
			fmt.Println(doc.Seq, doc.Event, doc.Key+doc.Id, len(rules))
		}
	}
}
