// Package trail writes the audit trail: one line for each changing call, with its client, its object and its outcome. Each line
// has a hash over itself and the line before, so that Verify finds lines that were changed or removed. The files are bounded. A
// failed write is counted, and the call succeeds.
//
// Lines of the engine's verbs come by package verbs. Calls that no verb belongs to, such as the pull of an image, come by Log.Call, and
// requests of HTTP by Log.Answers. Start at Open.
package trail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/atomicfile"
)

// Record is one line of the trail.
type Record struct {
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Face    string    `json:"face,omitempty"` // of the caller; "" is the node itself
	Call    string    `json:"call,omitempty"`
	Peer    string    `json:"peer,omitempty"`
	Request string    `json:"request,omitempty"`
	Verb    string    `json:"verb,omitempty"` // "" for a call that no verb belongs to
	Kind    string    `json:"kind,omitempty"` // "container", "sandbox"
	ID      string    `json:"id,omitempty"`
	Name    string    `json:"name,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Process string    `json:"process,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Outcome string    `json:"outcome"`
	Error   string    `json:"error,omitempty"`
	Lost    uint64    `json:"lost,omitempty"` // lines before this one that could not be written
	Prev    string    `json:"prev,omitempty"` // the hash before, in the first line of a file
}

// Outcomes of calls, and of lines of the trail itself.
const (
	OK     = "ok"
	Failed = "failed"
	Begun  = "begun" // the first line of a file
	Mended = "mended"
)

// maxText bounds each text of a record; maxLine bounds a line. JSON writes a byte as six at most.
const (
	maxText = 512
	maxLine = 64 << 10
)

// Options of a log.
type Options struct {
	Dir   string
	Bytes int64 // of a file before the next one begins
	Files int   // at most, the present one included
	// Copy, unless it is nil, gets each line as well. It must not block.
	Copy   func(line []byte) error
	Logger *slog.Logger
	Now    func() time.Time // nil is time.Now
}

// Log is an open trail. Its methods may be called from several goroutines.
type Log struct {
	o Options

	mu     sync.Mutex // guards f, head, at, size, lost, counts, warned, notify
	f      *os.File   // nil after a failed rotation
	head   *os.File
	at     chain
	size   int64
	lost   uint64 // since the last line
	counts Counts
	warned time.Time
	notify chan struct{} // closed at the next line; nil if nobody waits
}

// Counts are the lines since the log was opened.
type Counts struct{ Written, Lost, NotCopied uint64 }

// errStrange is for lines that no Log has written.
var errStrange = errors.New("is none of an audit trail")

// current is the name of the file that grows; older ones are current.1, current.2 and so on.
const (
	current  = "audit.log"
	headFile = "audit.head"
)

// Open opens the trail in a directory, which it makes. After a crash it removes an incomplete last line, and says so in the next one.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit trail: %w", err)
	}
	l := &Log{o: o}
	l.mu.Lock()
	err := l.open()
	l.mu.Unlock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("audit trail: %w", err), l.Close())
	}
	return l, nil
}

// open opens or makes the files. Preconditions: mu is held.
func (l *Log) open() (err error) {
	if l.head, err = os.OpenFile(filepath.Join(l.o.Dir, headFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	fresh := false
	if l.f, err = os.OpenFile(l.path(0), os.O_RDWR|os.O_APPEND, 0o600); errors.Is(err, os.ErrNotExist) {
		fresh = true
	} else if err != nil {
		return err
	}
	if fresh {
		// A rotation may have ended between its two steps: the older file has the last line.
		if l.at, err = lastOf(l.path(1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return l.begin()
	}
	whole, err := wholeLines(l.f)
	if err != nil {
		return err
	}
	info, err := l.f.Stat()
	if err != nil {
		return err
	}
	if l.at, err = lastOf(l.path(0)); errors.Is(err, errStrange) {
		return l.replace(err)
	} else if err != nil {
		return err
	}
	torn := info.Size() - whole
	if torn > 0 {
		if err := l.f.Truncate(whole); err != nil {
			return err
		}
	}
	l.size = whole
	if l.at.seq == 0 { // the file has no line
		if older, err := lastOf(l.path(1)); err == nil {
			l.at = older
		}
		err = l.append(&Record{Outcome: Begun, Prev: l.at.hash})
	} else if torn > 0 {
		err = l.append(&Record{Outcome: Mended, Detail: fmt.Sprintf("an incomplete line of %d bytes was removed", torn)})
	}
	return err
}

// replace sets a damaged file aside and begins another one, behind the line that audit.head names: Verify finds the hole.
// Preconditions: mu is held.
func (l *Log) replace(why error) (err error) {
	_ = l.f.Close()
	l.f = nil
	if err := atomicfile.SetAside(l.path(0)); err != nil {
		return err
	}
	l.o.Logger.Error("the audit trail was damaged, and another file begins", "error", why)
	if l.at, err = readHead(l.head.Name()); err != nil {
		l.at = chain{}
	}
	return l.begin()
}

// path returns the path of a file; 0 is the present one.
func (l *Log) path(n int) string { return numbered(l.o.Dir, n) }

func numbered(dir string, n int) string {
	path := filepath.Join(dir, current)
	if n > 0 {
		path = fmt.Sprintf("%s.%d", path, n)
	}
	return path
}

// begin makes the present file. Preconditions: mu is held.
func (l *Log) begin() (err error) {
	if l.f, err = os.OpenFile(l.path(0), os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	l.size = 0
	return l.append(&Record{Outcome: Begun, Prev: l.at.hash})
}

// rotate renames the files and begins the next one. It syncs nothing, because a caller waits for it. Preconditions: mu is held.
func (l *Log) rotate() error {
	if l.f != nil {
		_ = l.f.Close() // all is written
		l.f = nil
	}
	if err := os.Remove(l.path(l.o.Files - 1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for n := l.o.Files - 2; n >= 0; n-- {
		if err := os.Rename(l.path(n), l.path(n+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return l.begin()
}

// Write adds a record. It sets Seq, Time and Lost.
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write(&r)
	if err == nil {
		return
	}
	l.lost++
	l.counts.Lost++
	if now := l.o.Now(); now.Sub(l.warned) > time.Minute {
		l.warned = now
		l.o.Logger.Error("the audit trail misses lines", "error", err, "lines", l.counts.Lost, "face", r.Face, "call", r.Call, "outcome", r.Outcome)
	}
}

// Preconditions: mu is held.
func (l *Log) write(r *Record) error {
	if l.head == nil {
		return os.ErrClosed
	}
	if l.f == nil || l.size >= l.o.Bytes {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	return l.append(r)
}

// append writes a line to the present file. Preconditions: mu is held.
func (l *Log) append(r *Record) error {
	next := l.at
	r.Seq, r.Time, r.Lost = next.seq+1, l.o.Now().UTC().Round(0), l.lost
	for _, s := range []*string{&r.Face, &r.Call, &r.Peer, &r.Request, &r.ID, &r.Name, &r.Owner, &r.Process, &r.Detail, &r.Error} {
		*s = bounded(*s)
	}
	line, err := next.seal(r)
	if err != nil {
		return err
	}
	if n, err := l.f.Write(line); err != nil {
		if n > 0 { // the disk is full
			err = errors.Join(err, l.f.Truncate(l.size))
		}
		return err
	}
	if l.notify != nil {
		close(l.notify)
		l.notify = nil
	}
	l.size += int64(len(line))
	l.at, l.lost = next, 0
	l.counts.Written++
	if _, err := l.head.WriteAt(next.marshal(), 0); err != nil { // Verify finds a head that is behind
		l.o.Logger.Debug("the head of the audit trail is not written", "error", err)
	}
	if l.o.Copy != nil && l.o.Copy(bytes.TrimSuffix(line, []byte("\n"))) != nil {
		l.counts.NotCopied++
	}
	return nil
}

// bounded cuts a text. Invalid UTF-8 is replaced, as JSON has no other.
func bounded(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Changed returns a channel that is closed when the next line is written.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notify == nil {
		l.notify = make(chan struct{})
	}
	return l.notify
}

// Counts returns how many lines were written and lost.
func (l *Log) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// Close closes the files. Later records are lost.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, f := range []**os.File{&l.f, &l.head} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// wholeLines returns the length of a file up to the end of its last complete line.
func wholeLines(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	from := max(0, info.Size()-maxLine)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return 0, err
	}
	return from + int64(bytes.LastIndexByte(tail, '\n')) + 1, nil
}

// lastOf returns the chain after the last complete line of a file; it is empty for a file without one.
func lastOf(path string) (c chain, err error) {
	f, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer func() { _ = f.Close() }()
	end, err := wholeLines(f)
	if err != nil || end == 0 {
		return c, err
	}
	from := max(0, end-maxLine)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, end-from))
	if err != nil {
		return c, err
	}
	tail = bytes.TrimSuffix(tail, []byte("\n"))
	line := tail[bytes.LastIndexByte(tail, '\n')+1:]
	hash, body, ok := split(line)
	var r Record
	if !ok || json.Unmarshal(body, &r) != nil || r.Seq == 0 {
		return c, fmt.Errorf("%s: its last line %w", path, errStrange)
	}
	return chain{seq: r.Seq, hash: hash}, nil
}
