package names

import (
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/egress"
)

// The bounds of a journal.
const (
	maxJournal  = 1 << 20 // bytes of the file; then the older half is dropped
	keepJournal = 1 << 19
	maxSeen     = 4096 // different connections and names that are remembered
	repeatAfter = 10 * time.Second
)

// journal writes the egress log of one sandbox. A nil journal writes nothing.
type journal struct {
	now     func() time.Time
	refused atomic.Uint64 // records of refusals, those that were left out included

	mu      sync.Mutex // guards file, size, seen, byAddr, written
	file    *os.File
	size    int64
	seen    map[string]*repeated
	byAddr  map[netip.Addr]string // the name that an address was the answer of
	written map[string]string     // the addresses last recorded of a name
}

// repeated counts records that were left out because they are equal to one that was just written.
type repeated struct {
	at    time.Time
	count int
}

// newJournal returns one that appends to a file, which is its own.
func newJournal(file *os.File) *journal {
	j := &journal{now: time.Now, file: file, seen: map[string]*repeated{}, byAddr: map[netip.Addr]string{}, written: map[string]string{}}
	if info, err := file.Stat(); err == nil {
		j.size = info.Size()
	}
	return j
}

func (j *journal) refusedName(name, reason string) {
	j.add(egress.Record{Kind: egress.RecordRefusedName, Name: name, Reason: reason}, "n "+name+" "+reason)
}

func (j *journal) refusedAddress(name string, a netip.Addr) {
	j.add(egress.Record{Kind: egress.RecordRefusedName, Name: name, Addr: a, Reason: "the address is not public; NAME@private permits private ones"}, "a "+name+" "+a.String())
}

// resolved records the addresses of a name, if they are others than before.
func (j *journal) resolved(name string, answers []dnsmessage.Resource) {
	if j == nil {
		return
	}
	var addrs []netip.Addr
	text := ""
	for _, rec := range answers {
		if a, ok := addressOf(rec); ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs {
		text += a.String() + " "
	}
	j.mu.Lock()
	if len(j.byAddr)+len(addrs) > maxSeen {
		clear(j.byAddr)
	}
	for _, a := range addrs {
		j.byAddr[a] = name
	}
	key := name
	if len(addrs) > 0 && addrs[0].Is6() {
		key += " 6"
	}
	same := j.written[key] == text
	if !same {
		if len(j.written) >= maxSeen {
			clear(j.written)
		}
		j.written[key] = text
	}
	j.mu.Unlock()
	if !same {
		j.add(egress.Record{Kind: egress.RecordResolved, Name: name, Addrs: addrs}, "")
	}
}

// connection records the first packet of a connection.
func (j *journal) connection(r egress.Record) {
	if j == nil {
		return
	}
	j.mu.Lock()
	r.Name = j.byAddr[r.Addr]
	j.mu.Unlock()
	j.add(r, r.Kind+" "+r.Proto+" "+netip.AddrPortFrom(r.Addr, r.Port).String())
}

// add appends a record. Of those with equal keys it writes one in repeatAfter, and of opened connections the first only.
func (j *journal) add(r egress.Record, key string) {
	if j == nil {
		return
	}
	if r.Kind == egress.RecordRefused || r.Kind == egress.RecordRefusedName {
		j.refused.Add(1)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Time = j.now().UTC()
	if key != "" {
		s, ok := j.seen[key]
		switch {
		case !ok:
			if len(j.seen) >= maxSeen {
				clear(j.seen)
			}
			j.seen[key] = &repeated{at: r.Time}
		case r.Kind == egress.RecordOpened:
			return
		case r.Time.Sub(s.at) < repeatAfter:
			s.count++
			return
		default:
			if r.Count = s.count + 1; r.Count == 1 {
				r.Count = 0
			}
			*s = repeated{at: r.Time}
		}
	}
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	if j.size+int64(len(line)) > maxJournal {
		j.cutLocked()
	}
	n, _ := j.file.Write(append(line, '\n')) // on a full disk the record is lost
	j.size += int64(n)
}

// cutLocked drops the older half of the file. Preconditions: mu is held.
func (j *journal) cutLocked() {
	tail := make([]byte, keepJournal)
	n, err := j.file.ReadAt(tail, j.size-keepJournal)
	if err != nil && err != io.EOF {
		n = 0
	}
	tail = tail[:n]
	if i := slices.Index(tail, '\n'); i >= 0 {
		tail = tail[i+1:]
	}
	if j.file.Truncate(0) != nil {
		return
	}
	n, _ = j.file.Write(tail)
	j.size = int64(n)
}
