// Package errtext makes the text of an error fit for those who read it at an
// orchestrator: the same cause gives the same text, and the cause comes early.
//
// Orchestrators join events by their text, and some cut it off. So what differs
// from one try to the next, above all IDs, must not be in it. The log and the
// event log keep the whole text. Start at Plain.
package errtext

import (
	"net/netip"
	"strconv"
	"strings"
)

// idLen is the length of an ID of a sandbox or container.
const idLen = 64

// Plain returns an error's text without IDs of sandboxes and containers, without
// keys, without the local end of a connection, whose port is another one each time,
// and without an operation that was told before. An ID stays where it is the
// whole of the news: who holds what was asked for, and which object there is not.
func Plain(text string) string {
	return withoutRepeats(withoutKeys(withoutLocalEnds(withoutIDs(text))))
}

// withoutLocalEnds makes "read udp 192.0.2.1:40000->192.0.2.2:53", as package net has
// it, "read udp 192.0.2.2:53".
func withoutLocalEnds(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		local, remote, ok := strings.Cut(w, "->")
		if _, err := netip.ParseAddrPort(local); ok && err == nil {
			words[i] = remote
		}
	}
	return strings.Join(words, " ")
}

// withoutIDs drops an ID with the process's name behind it, or names it ID where
// it is a part of a path.
func withoutIDs(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		n := hexRun(text[i:])
		if n != idLen || stays(text[:i], text[i+n:]) {
			n = max(n, 1)
			b.WriteString(text[i : i+n])
			i += n
			continue
		}
		i += n
		switch before := b.String(); {
		case strings.HasSuffix(before, " "):
			b.Reset()
			b.WriteString(strings.TrimSuffix(before, " "))
			i += process(text[i:])
		case before == "":
			i += process(text[i:])
			i += len(text[i:]) - len(strings.TrimPrefix(text[i:], ": "))
		default:
			b.WriteString("ID")
		}
	}
	return b.String()
}

// hexRun is how many hexadecimal digits text begins with.
func hexRun(text string) int {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return i
		}
	}
	return len(text)
}

// stays reports whether the ID between before and after is to be told. A digest of
// an image is none.
func stays(before, after string) bool {
	for _, s := range []string{"by sandbox ", "by container ", "sha256:"} {
		if strings.HasSuffix(before, s) {
			return true
		}
	}
	return after == ": not found" || after == "\": not found"
}

// process is the length of the process's name that follows an ID.
func process(text string) int {
	if !strings.HasPrefix(text, "/") {
		return 0
	}
	if i := strings.IndexAny(text, ": "); i >= 0 {
		return i
	}
	return len(text)
}

// withoutKeys drops the key behind "create sandbox" and "create container".
func withoutKeys(text string) string {
	for _, op := range []string{"create sandbox ", "create container "} {
		i := strings.Index(text, op+`"`)
		if i < 0 {
			continue
		}
		rest := text[i+len(op):]
		if key, err := strconv.QuotedPrefix(rest); err == nil {
			text = text[:i+len(op)-1] + rest[len(key):]
		}
	}
	return text
}

// withoutRepeats drops a part that says no more than the one before it.
func withoutRepeats(text string) string {
	parts := strings.Split(text, ": ")
	kept := parts[:1]
	for _, p := range parts[1:] {
		last := kept[len(kept)-1]
		if p == "" || p != last && !strings.HasPrefix(last, p+" ") {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, ": ")
}
