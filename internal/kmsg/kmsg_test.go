package kmsg

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

func TestParseVictim(t *testing.T) {
	for line, want := range map[string]*core.OOMVictim{
		"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/longshore/a,task_memcg=/longshore/a/b,task=busybox,pid=5973,uid=0": {Pid: 5973, Memcg: "/longshore/a", Victim: "/longshore/a/b"},
		"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=x,mems_allowed=0,global_oom,task_memcg=/x,task=a,pid=7,uid=0":                                   {Pid: 7, Victim: "/x"},
		"oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a,task=evil,pid=1,uid=0,pid=9,uid=5":                                                         {Pid: 9, Memcg: "/a", Victim: "/a"},
		"Memory cgroup out of memory: Killed process 5973 (busybox) total-vm:14564kB":                                                                               {Pid: 5973},
		"Out of memory: Killed process 12 (x y) total-vm:1kB":                                                                                                       {Pid: 12},
		"Memory cgroup out of memory: Killed process abc":                                                                                                           nil,
		"oom-kill:": nil,
		"oom-kill:constraint=CONSTRAINT_MEMCG,pid=5":         nil,
		"usb 1-1: new device":                                nil,
		"oom_reaper: reaped process 5 (x), now anon-rss:0kB": nil,
	} {
		got, ok := parseVictim(line)
		if ok != (want != nil) {
			t.Errorf("%s: %v", line, ok)
		} else if ok {
			if d := cmp.Diff(*want, got); d != "" {
				t.Errorf("%s: %s", line, d)
			}
		}
	}
}

func TestParseRecord(t *testing.T) {
	r, ok := parseRecord("6,1234,5678901,-;some\\x0atext\n SUBSYSTEM=x\n")
	if !ok || r.since != 5678901*time.Microsecond || r.text != "some\ntext" {
		t.Errorf("%+v %v", r, ok)
	}
	// Facility 1 is user space: a writer of the log could make up kills.
	for _, bad := range []string{"", "6,1,2", "x,1,2,-;t", "6,1,-2,-;t", "12,1,2,-;oom-kill:", "6;t", "6,1,99999999999999999999,-;t"} {
		if r, ok := parseRecord(bad); ok {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}

func TestTwoLinesAreOneKill(t *testing.T) {
	at := 1000 * time.Second
	var v []kill
	for _, x := range []kill{
		{at, core.OOMVictim{Pid: 5, Memcg: "/a", Victim: "/a/b"}},
		{at + time.Millisecond, core.OOMVictim{Pid: 5}},
		{at + time.Second, core.OOMVictim{Pid: 6}},
		{at + time.Hour, core.OOMVictim{Pid: 5, Memcg: "/c", Victim: "/c"}},
	} {
		v = merge(v, x)
	}
	want := []kill{
		{at, core.OOMVictim{Pid: 5, Memcg: "/a", Victim: "/a/b"}},
		{at + time.Second, core.OOMVictim{Pid: 6}},
		{at + time.Hour, core.OOMVictim{Pid: 5, Memcg: "/c", Victim: "/c"}},
	}
	if d := cmp.Diff(want, v, cmp.AllowUnexported(kill{})); d != "" {
		t.Error(d)
	}
}

// TestEachEntryIsReadOnce: entries are remembered with their times.
func TestEachEntryIsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	// A pipe gives each entry to its first reader, and then has none.
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	l := New(Options{Path: path})
	boot, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	look := func(since time.Duration, want ...int) {
		t.Helper()
		var got []int
		for _, v := range l.Victims(t.Context(), boot.Add(since)) {
			got = append(got, int(v.At.Sub(boot).Round(time.Second)/time.Second))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("since %s (-want +got):\n%s", since, d)
		}
	}
	kills := func(pid, second int) {
		t.Helper()
		if _, err := fmt.Fprintf(w, "3,1,%d000000,-;Memory cgroup out of memory: Killed process %d (x)\n", second, pid); err != nil {
			t.Fatal(err)
		}
	}
	look(0)
	kills(5, 100)
	look(0, 100)
	kills(6, 200)
	look(150*time.Second, 200)
	look(0, 100, 200)
	look(250 * time.Second)
}

func TestUnreadableLogIsNil(t *testing.T) {
	if v := New(Options{Path: filepath.Join(t.TempDir(), "no")}).Victims(t.Context(), time.Time{}); v != nil {
		t.Errorf("%v", v)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if v := New(Options{Path: empty}).Victims(t.Context(), time.Time{}); v == nil || len(v) != 0 {
		t.Errorf("%v", v)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("6,1234,5678901,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a/b,task=x,pid=5,uid=0\n")
	f.Add("3,1,2,-;Memory cgroup out of memory: Killed process 5973 (busybox) total-vm:14564kB")
	f.Fuzz(func(t *testing.T, s string) {
		r, ok := parseRecord(s)
		if !ok {
			return
		}
		if r.since < 0 {
			t.Errorf("before boot: %v", r.since)
		}
		if v, ok := parseVictim(r.text); ok && v.Pid <= 0 {
			t.Errorf("%+v", v)
		}
	})
}
