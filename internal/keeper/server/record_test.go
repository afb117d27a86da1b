package server

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/keeper/wire"
)

// TestTheNextKeeperGetsTheWholeProcess: each field of a process that outlives a keeper is in its record.
func TestTheNextKeeperGetsTheWholeProcess(t *testing.T) {
	exit := &wire.Exit{Ref: wire.Ref{Container: "c", Process: "p"}, Pid: 7, Code: 3, Signal: 9, Nanos: 5, OOMKills: []uint64{1}, OOMLocal: []uint64{2}, Peak: 6, LostOut: 8}
	io := wire.IO{Cols: 80, Rows: 25, Stdin: wire.StdinOnce, Sinks: []wire.Sink{{Path: "/log", Stdout: true, MaxBytes: 10, MaxFiles: 2, CRI: true}}}
	s, _ := newTestServer(t)
	before := s.newProc(wire.Ref{Container: "c", Process: "p"}, "key", io)
	before.serial, before.levels, before.peak = 4, []wire.Level{{Path: "/cgroup", Local: "/local"}}, "/peak"
	before.base = counters{kills: []uint64{11}, local: []uint64{12}}
	before.phase, before.pid, before.cmdPid, before.pidFile = ended, 7, 8, "/pid"
	before.exit, before.acked, before.stdinOnceUsed = exit, true, true

	var r record
	if !wire.ParseRecord(before.record(nil), &r) {
		t.Fatal("the record cannot be read")
	}
	want := record{
		serial: 4, ref: wire.Ref{Container: "c", Process: "p"}, io: io, levels: before.levels, peak: "/peak", kills: []uint64{11}, local: []uint64{12},
		phase: uint64(ended), pid: 7, cmdPid: 8, pidFile: "/pid", hasExit: true, exit: *exit, acked: true, once: true,
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v\nnot %+v", r, want)
	}
	if n := reflect.TypeFor[record]().NumField(); n != 15 {
		t.Errorf("a record has %d fields: this test has 15", n)
	}
}

// TestAProcessReleasedBeforeItParkedRunsForTheNextKeeper, which cannot release it again.
func TestAProcessReleasedBeforeItParkedRunsForTheNextKeeper(t *testing.T) {
	s, _ := newTestServer(t)
	p := s.newProc(wire.Ref{Container: "c"}, "key", wire.IO{})
	p.early = true
	var r record
	if !wire.ParseRecord(p.record(nil), &r) || phase(r.phase) != running {
		t.Errorf("phase %d", r.phase)
	}
}

func TestARecordOfAnotherVersionIsRefused(t *testing.T) {
	s, _ := newTestServer(t)
	b := s.newProc(wire.Ref{Container: "c"}, "key", wire.IO{}).record(nil)
	b[0]++
	if wire.ParseRecord(b, new(record)) {
		t.Error("it was read")
	}
}

// TestLimitsOfSinks: negative numbers in a request have a meaning of their own.
func TestLimitsOfSinks(t *testing.T) {
	s, _ := newTestServer(t)
	p := s.newProc(wire.Ref{}, "key", wire.IO{Sinks: []wire.Sink{
		{CRI: true, MaxBytes: 10, MaxFiles: 2}, {CRI: true, MaxBytes: -1}, {MaxBytes: 10, MaxFiles: -3},
	}})
	if k := p.sinks[0]; !k.CRI || k.Plain || k.MaxBytes != 10 || k.MaxFiles != 2 || k.Numbered {
		t.Errorf("with limits: %+v", k)
	}
	if k := p.sinks[1]; !k.Plain || k.MaxBytes != 0 {
		t.Errorf("plain: %+v", k)
	}
	if k := p.sinks[2]; !k.Numbered || k.MaxFiles != 3 {
		t.Errorf("numbered: %+v", k)
	}
}

// TestOutputsGoToTheSinksThatAskForThem, by the index of each.
func TestOutputsGoToTheSinksThatAskForThem(t *testing.T) {
	s, _ := newTestServer(t)
	p := s.newProc(wire.Ref{}, "key", wire.IO{Sinks: []wire.Sink{{Stdout: true}, {Stderr: true}, {Stdout: true, Stderr: true}}})
	p.setSource(-1, false)
	p.setSource(-1, true)
	if got := p.out.Sinks; got[0] != p.sinks[0] || got[1] != nil || got[2] != p.sinks[2] {
		t.Errorf("standard output: %v", got)
	}
	if got := p.err.Sinks; got[0] != nil || got[1] != p.sinks[1] || got[2] != p.sinks[2] {
		t.Errorf("standard error: %v", got)
	}
	s.bySerial = map[uint64]*proc{4: p}
	if s.source(4, true) != &p.err.Source || s.source(4, false) != &p.out.Source || s.source(5, false) != nil {
		t.Error("the journal finds another output")
	}
}

// TestDelays: the loop sleeps until the first function is due, and calls each once.
func TestDelays(t *testing.T) {
	var l delays
	var called []string
	now := time.Now()
	if ms := l.wait(now); ms != -1 {
		t.Errorf("without any it waits for %d ms", ms)
	}
	add := func(name string, d time.Duration) {
		l = append(l, delayed{now.Add(d), func() { called = append(called, name) }})
	}
	add("later", time.Second)
	add("soon", 1500*time.Microsecond)
	if ms := l.wait(now); ms != 2 {
		t.Errorf("it waits for %d ms, not for 1.5 ms rounded up", ms)
	}
	if l.call(now.Add(time.Millisecond)); len(called) > 0 {
		t.Errorf("%v too early", called)
	}
	l.call(now.Add(2 * time.Millisecond))
	l.call(now.Add(2 * time.Millisecond))
	if !slices.Equal(called, []string{"soon"}) {
		t.Errorf("called %v", called)
	}
	if ms := l.wait(now.Add(2 * time.Second)); ms != 0 {
		t.Errorf("for what is due it waits for %d ms", ms)
	}
	again := 0
	l = delays{{now, func() { again++; l = append(l, delayed{now, func() { again++ }}) }}}
	if l.call(now); again != 1 || len(l) != 1 {
		t.Errorf("a function that adds one: %d called, %d left", again, len(l))
	}
}

func TestUnfinishedLinesWakeTheLoop(t *testing.T) {
	now := func() time.Time { return time.Unix(100, 0) }
	if ms := (partialLines{}).wait(now); ms != -1 {
		t.Errorf("without any it waits for %d ms", ms)
	}
	// A source with a line that was finished meanwhile comes up at once.
	if ms := (partialLines{&source{}: {}}).wait(now); ms != 0 {
		t.Errorf("for a finished line it waits for %d ms", ms)
	}
}

func TestNamesOfHeldFiles(t *testing.T) {
	for key, want := range map[string]string{wire.HeldPrefix + "swarm/keys": "swarm/keys", wire.HeldPrefix: "", "p1": "", "": ""} {
		if name, ok := heldName(key); name != want || ok != (want != "") {
			t.Errorf("%q is %q, %t", key, name, ok)
		}
	}
	if it := heldItem("a", 2); it.Key != wire.HeldPrefix+"a" || !slices.Equal(it.Roles, []wire.Role{wire.RoleSink, wire.RoleSink + 1}) {
		t.Errorf("%+v", it)
	}
}
