package egress

import (
	"bufio"
	"encoding/json"
	"io"
	"net/netip"
	"slices"
	"time"
)

// The kinds of records.
const (
	RecordResolved    = "resolved"     // a name has these addresses, which are open now
	RecordOpened      = "opened"       // the first connection to an address and port
	RecordRefused     = "refused"      // a connection
	RecordRefusedName = "refused-name" // a question of a name, or an address that a name must not have
)

// Record is a line of a sandbox's egress log.
type Record struct {
	Time   time.Time    `json:"time"`
	Kind   string       `json:"kind"`
	Name   string       `json:"name,omitempty"`
	Addr   netip.Addr   `json:"addr,omitzero"`
	Addrs  []netip.Addr `json:"addrs,omitempty"` // of RecordResolved
	Proto  string       `json:"proto,omitempty"`
	Port   uint16       `json:"port,omitempty"`
	UID    *uint32      `json:"uid,omitempty"`   // on the host
	Count  int          `json:"count,omitempty"` // of equal refusals since the last record of them, with this one; 0 is 1
	Reason string       `json:"reason,omitempty"`
}

// Records reads a log. Lines that are not whole are left out: the log may be read while it is written, and be cut.
func Records(r io.Reader) (list []Record, err error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, tooLong, err := lines.ReadLine()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		var rec Record
		if !tooLong && json.Unmarshal(line, &rec) == nil && rec.Kind != "" {
			list = append(list, rec)
		}
	}
}

// Refusal reports whether a record is about a refusal.
func (r Record) Refusal() bool { return r.Kind == RecordRefused || r.Kind == RecordRefusedName }

// maxTail bounds the bytes that LastRefused reads.
const maxTail = 64 << 10

// LastRefused returns the refusals at the end of a log, oldest first.
func LastRefused(log io.ReadSeeker) ([]Record, error) {
	size, err := log.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = log.Seek(max(0, size-maxTail), io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	list, err := Records(log)
	return slices.DeleteFunc(list, func(r Record) bool { return !r.Refusal() }), err
}

// Learned returns the entries that permit the connections of a log.
func Learned(records []Record) []string {
	private := map[string]bool{}
	for _, r := range records {
		for _, a := range r.Addrs {
			private[r.Name] = private[r.Name] || !Answerable(a, false)
		}
	}
	type host struct{ name, proto string }
	ports := map[host][]Ports{}
	for _, r := range records {
		if _, known := protocols[r.Proto]; r.Kind != RecordOpened || !known {
			continue
		}
		h := host{r.Name, r.Proto}
		if private[r.Name] {
			h.name += "@private"
		}
		if r.Name == "" {
			h.name = r.Addr.String()
		}
		if r.Proto == "icmp" {
			ports[h] = nil
		} else if p := (Ports{r.Port, r.Port}); !slices.Contains(ports[h], p) {
			ports[h] = append(ports[h], p)
		}
	}
	var list []string
	for h, p := range ports {
		slices.SortFunc(p, func(a, b Ports) int { return int(a.First) - int(b.First) })
		text := h.name
		service := Service{Proto: protocols[h.proto], Ports: p}.String()
		if a, err := netip.ParseAddr(h.name); err == nil && a.Is6() && len(p) > 0 {
			text = "[" + text + "]"
		}
		list = append(list, text+service)
	}
	slices.Sort(list)
	return list
}
