package bolt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
)

// The event log's file is text: a header line with the schema, then lines
//
//	CRC32C SP KIND SP SEQ SP JSON LF
//
// The sum covers everything after it, up to the LF. KIND "e" is an event. "c" is a checkpoint: the
// list of objects that exist after event SEQ, so that a file can be read without those before it.
// Every file begins with a checkpoint. A line that does not match its sum is left out: at the end
// of the file a power cut has interrupted its write, elsewhere the disk has damaged it.
const (
	logHeader    = "longshore-events "
	lineEvent    = "e"
	lineCensus   = "c"
	maxLogLine   = 16 << 20
	oldLogSuffix = ".1"
	newLogSuffix = ".new"
)

// eventLog is the append-only copy of the events. Only one goroutine at a time calls append,
// catchUp and rotate.
type eventLog struct {
	path   string
	limit  int64
	logger *slog.Logger
	size   int64
	last   uint64 // the Seq of the newest event in the file
	census census
	broken bool // the last write failed; events collect in missed until one succeeds
	missed []state.Event
	// sums are the checksums of the events that the file had when it was opened, by Seq, and
	// damaged is how many of its lines could not be read.
	sums    map[uint64]uint32
	damaged int

	syncing sync.Mutex // serializes sync, so that each call returns after the disk has all earlier events. Lock order: syncing, then mu.
	mu      sync.Mutex // guards f, dirty
	f       *os.File
	dirty   bool

	kick chan struct{}
	quit chan struct{}
	done chan struct{}
}

func openLog(path string, limit int64, logger *slog.Logger) (*eventLog, error) {
	l := &eventLog{
		path: path, limit: limit, logger: logger, census: census{},
		kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	// A crash in rotate may have left the new file under its temporary name.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(path+newLogSuffix, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	strange := atomicfile.Strange(path)
	if strange != "" {
		logger.Error("the event log's name belongs to another kind of file; a new log begins, and events that are not in the live records are lost", "file", path, "is", strange, "kept", path+atomicfile.Damaged)
		if err := atomicfile.SetAside(path); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l.f = f
	if err := l.scan(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if strange != "" {
		l.damaged = 1
	}
	go l.syncLoop()
	return l, nil
}

// scan finds the last valid line and truncates the file after it. mu is not needed: the log is
// not synced yet.
func (l *eventLog) scan() error {
	l.sums = map[uint64]uint32{}
	r, err := readLog(l.f, l.path, func(kind string, seq uint64, raw []byte) error {
		l.last = max(l.last, seq)
		if kind == lineEvent {
			l.sums[seq] = lineSum(kind, seq, raw)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.size, l.damaged = r.end, r.damaged
	switch {
	case r.end == 0 && r.size == 0:
		return l.begin(l.f)
	case r.end == 0:
		return l.putAside()
	case r.headless:
		// A line of the same length replaces the first one.
		head := make([]byte, r.head)
		copy(head, logHeader+strconv.Itoa(Schema()))
		for i := len(logHeader) + 1; i < len(head); i++ {
			head[i] = ' '
		}
		head[len(head)-1] = '\n'
		if len(head) < len(logHeader)+2 {
			break // it is too short: readers do without it
		}
		if _, err := l.f.WriteAt(head, 0); err != nil {
			return err
		}
	}
	if l.damaged > 0 {
		l.logger.Error("the event log is damaged: the events of these lines are missing, unless the live records still have them. Check the disk", "file", l.path, "lines", l.damaged)
	}
	if err := l.f.Truncate(r.end); err != nil {
		return err
	}
	_, err = l.f.Seek(r.end, io.SeekStart)
	return err
}

// putAside renames an unreadable file, and begins a new one. mu is not needed: the log is not
// synced yet.
func (l *eventLog) putAside() error {
	aside := l.path + atomicfile.Damaged
	l.logger.Error("the event log cannot be read; a new one begins, and events that are not in the live records are lost. Check the disk", "file", l.path, "kept", aside)
	if err := os.Rename(l.path, aside); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_ = l.f.Close() // nothing was written
	l.f, l.damaged = f, 1
	return l.begin(f)
}

// begin writes header and checkpoint to an empty file.
func (l *eventLog) begin(f *os.File) error {
	list, err := json.Marshal(l.census.list())
	if err != nil {
		return err
	}
	head := append([]byte(logHeader+strconv.Itoa(Schema())+"\n"), logLine(lineCensus, l.last, list)...)
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return err
	}
	if _, err := f.Seek(int64(len(head)), io.SeekStart); err != nil {
		return err
	}
	l.size = int64(len(head))
	return f.Sync()
}

func logLine(kind string, seq uint64, raw []byte) []byte {
	body := fmt.Appendf(nil, "%s %d %s", kind, seq, raw)
	return append(fmt.Appendf(nil, "%08x ", crc32.Checksum(body, castagnoli())), append(body, '\n')...)
}

// lineSum returns the checksum that a line has.
func lineSum(kind string, seq uint64, raw []byte) uint32 {
	return crc32.Update(crc32.Checksum(fmt.Appendf(nil, "%s %d ", kind, seq), castagnoli()), castagnoli(), raw)
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // the package caches it

// parseLine is the inverse of logLine, without the LF.
func parseLine(line []byte) (kind string, seq uint64, raw []byte, ok bool) {
	sum, body, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(sum) != 8 {
		return "", 0, nil, false
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.Checksum(body, castagnoli()) {
		return "", 0, nil, false
	}
	part := bytes.SplitN(body, []byte{' '}, 3)
	if len(part) != 3 {
		return "", 0, nil, false
	}
	seq, err = strconv.ParseUint(string(part[1]), 10, 64)
	return string(part[0]), seq, part[2], err == nil
}

// logRead is the result of readLog.
type logRead struct {
	size     int64 // of all that was read
	end      int64 // the offset after the last valid line; 0 when there is none after the header
	head     int64 // the length of the first line
	damaged  int   // lines before the last valid one that are not valid
	headless bool  // the header is one of them
}

// readLog calls fn for every valid line. A file of a newer schema is FailedPrecondition.
func readLog(r io.Reader, path string, fn func(kind string, seq uint64, raw []byte) error) (found logRead, err error) {
	br := bufio.NewReaderSize(r, 16<<10)
	bad := 0
	for {
		line, err := br.ReadBytes('\n')
		first := found.size == 0
		found.size += int64(len(line))
		if err != nil {
			return found, nil //nolint:nilerr // a line without an end was not written to its end
		}
		body := line[:len(line)-1]
		if version, ok := strings.CutPrefix(string(body), logHeader); first && ok {
			found.head = int64(len(line))
			version = strings.TrimRight(version, " ")
			if n, err := strconv.Atoi(version); err == nil && n > 0 {
				if err := checkSchema(path, version); err != nil {
					return found, err
				}
				continue
			}
		}
		kind, seq, raw, ok := parseLine(body)
		if first {
			found.head, found.headless = int64(len(line)), true
		}
		if !ok || len(line) > maxLogLine {
			bad++
			continue
		}
		if err := fn(kind, seq, raw); err != nil {
			return found, err
		}
		found.end = found.size
		found.damaged, bad = found.damaged+bad, 0
	}
}

// readCensus rebuilds the census from the current file.
func (l *eventLog) readCensus() error {
	l.census = census{}
	return l.reread(l.path, l.census.line)
}

// readEvents returns the events of both files up to l.last, without a gap: events before a gap
// are left out.
func (l *eventLog) readEvents() ([][]byte, error) {
	var raws [][]byte
	var last uint64
	collect := func(kind string, seq uint64, raw []byte) error {
		if kind != lineEvent {
			return nil
		}
		if seq != last+1 {
			raws = nil
		}
		raws, last = append(raws, raw), seq
		return nil
	}
	for _, path := range []string{l.path + oldLogSuffix, l.path} {
		if err := l.reread(path, collect); err != nil {
			return nil, err
		}
	}
	if last != l.last {
		raws = nil // the newest file has only a checkpoint
	}
	return raws, nil
}

func (l *eventLog) reread(path string, fn func(string, uint64, []byte) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = readLog(f, path, fn)
	return errors.Join(err, f.Close())
}

// catchUp writes the events that the log lacks, up to last.
func (l *eventLog) catchUp(raws [][]byte, last uint64) {
	if l.last >= last {
		return
	}
	if missing := last - l.last; missing > uint64(len(raws)) {
		l.rewrite(raws, last) // it is too far behind to continue
		return
	}
	l.appendRaw(raws[len(raws)-int(last-l.last):])
}

// rewrite begins a new file with these events, the newest last. If the disk is full, they are
// appended to the present file, and a reader begins with them.
func (l *eventLog) rewrite(raws [][]byte, last uint64) {
	l.last = last - uint64(len(raws))
	if err := l.rotate(); err != nil {
		l.logger.Error("could not begin a new event log; will append to the present one", "file", l.path, "error", err)
	}
	l.appendRaw(raws)
}

// appendRaw appends the events that follow the newest one.
func (l *eventLog) appendRaw(raws [][]byte) {
	var es []state.Event
	for i, raw := range raws {
		es = append(es, state.Event{Event: core.Event{Seq: l.last + uint64(i) + 1}, JSON: raw})
	}
	l.append(es)
}

// append writes the events of a finished commit. An error is logged once, and the log is completed
// when it can be written again.
func (l *eventLog) append(events []state.Event) {
	if len(events) == 0 {
		return
	}
	l.missed = append(l.missed, events...)
	var buf []byte
	for _, e := range l.missed {
		buf = append(buf, logLine(lineEvent, e.Seq, e.JSON)...)
	}
	err := l.write(buf)
	if err == nil {
		l.last = l.missed[len(l.missed)-1].Seq
		l.missed = nil
		if l.broken {
			l.broken = false
			l.logger.Info("the event log is complete again")
		}
		if l.size > l.limit {
			err = l.rotate()
		}
	}
	if err != nil && !l.broken {
		l.broken = true
		l.logger.Error("could not write the event log; it will be completed when it can be written again", "error", err)
	}
	if extra := len(l.missed) - maxMissed; extra > 0 {
		l.missed = l.missed[extra:]
	}
}

// maxMissed bounds the events kept for a log that cannot be written. Beyond it the log gets a gap,
// and a reader drops the events before that.
const maxMissed = 10_000

func (l *eventLog) write(buf []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.f.WriteAt(buf, l.size)
	if err != nil {
		if n > 0 {
			err = errors.Join(err, l.f.Truncate(l.size))
		}
		return err
	}
	l.size += int64(n)
	l.dirty = true
	select {
	case l.kick <- struct{}{}:
	default:
	}
	return nil
}

// rotate makes the current file the old one and begins a new one with a checkpoint. At every
// moment one of the two names is a valid log.
func (l *eventLog) rotate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path+newLogSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	size := l.size
	err = l.begin(f)
	err = errors.Join(err, l.f.Sync())
	if err == nil {
		err = os.Rename(l.path, l.path+oldLogSuffix)
	}
	if err == nil {
		err = os.Rename(l.path+newLogSuffix, l.path)
	}
	if err != nil {
		l.size = size
		return errors.Join(err, f.Close())
	}
	err = l.f.Close()
	l.f, l.dirty = f, false
	dir, derr := os.Open(filepath.Dir(l.path))
	if derr != nil {
		return errors.Join(err, derr)
	}
	return errors.Join(err, dir.Sync(), dir.Close())
}

// syncEvery is the shortest time between two syncs of the event log.
const syncEvery = time.Second

func (l *eventLog) sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	f, dirty := l.f, l.dirty
	l.dirty = false
	l.mu.Unlock()
	if !dirty {
		return nil
	}
	// Not under mu: a commit must not wait for the disk. rotate may close f meanwhile, after it
	// has synced it.
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		l.mu.Lock()
		l.dirty = true
		l.mu.Unlock()
		return err
	}
	return nil
}

// syncLoop syncs after writes, at most once per syncEvery.
func (l *eventLog) syncLoop() {
	defer close(l.done)
	timer := time.NewTimer(0)
	<-timer.C
	for {
		select {
		case <-l.kick:
		case <-l.quit:
			return
		}
		if err := l.sync(); err != nil {
			l.logger.Error("could not sync the event log; a power cut now loses its newest events", "error", err)
		}
		timer.Reset(syncEvery)
		select {
		case <-timer.C:
		case <-l.quit:
			return
		}
	}
}

// close syncs and closes the log. mu is not needed: syncLoop has ended.
func (l *eventLog) close() error {
	close(l.quit)
	<-l.done
	return errors.Join(l.sync(), l.f.Close())
}
