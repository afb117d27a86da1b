package stats

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/hostinfo"
)

// rig is a Server over an engine with fakes.
type rig struct {
	*enginetest.Node
	s      *Server
	mux    *dockerhttp.Mux
	c      core.Container
	events []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Node: enginetest.New(t)}
	eng := r.As(core.OwnerDocker)
	r.c = r.Running(r.Pod(core.OwnerDocker, "web"), "web", r.AddImage("busybox", ocispec.ImageConfig{}, nil), "run")
	r.s = &Server{
		Engine: eng,
		Container: func(ctx context.Context, ref string) (core.Container, error) {
			c, err := eng.ContainerByKey(ctx, core.Key(ref))
			if err != nil {
				err = errdefs.ErrNotFound.WithMessage("No such container: " + ref)
			}
			return c, err
		},
		Publish: func(typ, action, id string, _ map[string]string) { r.events = append(r.events, typ+" "+action+" "+id) },
	}
	r.mux = &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
	r.s.Routes(r.mux)
	return r
}

// set sets the numbers of the container.
func (r *rig) set(s core.Stats) { r.Cgroups.SetStats(r.c.Cgroup, s) }

// writer is the answer to a request. It calls each after each document of a stream.
type writer struct {
	*httptest.ResponseRecorder
	each func(n int)
	docs int
}

func (w *writer) Write(b []byte) (int, error) {
	n, err := w.ResponseRecorder.Write(b)
	if bytes.HasSuffix(b, []byte("\n")) {
		w.docs++
		if w.each != nil {
			w.each(w.docs)
		}
	}
	return n, err
}

// get returns the status, the documents and the text of an answer. The client leaves after last documents, if last is not 0.
func (r *rig) get(t *testing.T, target string, last int, each func(n int)) (int, []dockertypes.Stats, string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	w := &writer{ResponseRecorder: httptest.NewRecorder(), each: func(n int) {
		if each != nil {
			each(n)
		}
		if n == last {
			leave()
		}
	}}
	r.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil).WithContext(ctx))
	var docs []dockertypes.Stats
	text := w.Body.String()
	for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
		var doc dockertypes.Stats
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		docs = append(docs, doc)
	}
	return w.Code, docs, text
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.Network.SetStats(r.c.Sandbox, core.NetStats{Name: "eth0", RxBytes: 1, TxPackets: 2})
		numbers := core.Stats{
			CPU:    core.CPUStats{Usage: core.Known(100), User: core.Known(60), System: core.Known(40), Throttled: core.Known(3)},
			Memory: core.MemoryStats{Usage: core.Known(1000), Limit: core.Known(4000), Raw: map[string]uint64{"inactive_file": 10}},
			Pids:   core.PidsStats{Current: core.Known(2), Limit: core.Known(9)},
			IO:     []core.IOStats{{Major: 8, ReadBytes: 5, WriteBytes: 6}},
		}
		r.set(numbers)
		began := time.Now()
		code, docs, _ := r.get(t, "/containers/web/stats", 3, func(n int) {
			if n == 1 {
				numbers.CPU.Usage = core.Known(300)
				r.set(numbers)
			}
		})
		if code != http.StatusOK || len(docs) != 3 || time.Since(began) != 2*time.Second {
			t.Fatalf("status %d, %d documents after %v", code, len(docs), time.Since(began))
		}
		first, second := docs[0], docs[1]
		if first.ID != string(r.c.ID) || first.Name != "/web" || !first.PreRead.IsZero() || first.PreCPUStats.SystemUsage != 0 {
			t.Errorf("first document %+v", first)
		}
		if second.PreCPUStats.CPUUsage.TotalUsage != 100 || second.CPUStats.CPUUsage.TotalUsage != 300 || !second.PreRead.Equal(first.Read) ||
			second.PreCPUStats.SystemUsage != first.CPUStats.SystemUsage || second.CPUStats.SystemUsage == 0 || second.CPUStats.OnlineCPUs == 0 {
			t.Errorf("second document %+v", second)
		}
		if m := first.MemoryStats; m.Usage != 1000 || m.Limit != 4000 || m.Stats["inactive_file"] != 10 {
			t.Errorf("memory %+v", m)
		}
		if n := first.Networks["eth0"]; n.RxBytes != 1 || n.TxPackets != 2 {
			t.Errorf("networks %+v", first.Networks)
		}
		if first.PidsStats != (dockertypes.PidsStats{Current: 2, Limit: 9}) || first.CPUStats.ThrottlingData.ThrottledPeriods != 3 {
			t.Errorf("pids %+v, throttling %+v", first.PidsStats, first.CPUStats.ThrottlingData)
		}
		want := []dockertypes.BlkioEntry{{Major: 8, Op: "read", Value: 5}, {Major: 8, Op: "write", Value: 6}}
		if !slices.Equal(first.BlkioStats.IoServiceBytesRecursive, want) {
			t.Errorf("blkio %+v", first.BlkioStats)
		}
	})
}

func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set(core.Stats{CPU: core.CPUStats{Usage: core.Known(100)}})
		began := time.Now()
		_, docs, _ := r.get(t, "/containers/web/stats?stream=0", 0, nil)
		if len(docs) != 1 || docs[0].PreRead.IsZero() || docs[0].PreCPUStats.CPUUsage.TotalUsage != 100 || time.Since(began) != time.Second {
			t.Errorf("%d documents after %v: %+v", len(docs), time.Since(began), docs)
		}
		if docs[0].MemoryStats.Limit != hostinfo.Memory() {
			t.Errorf("limit %d of a container without one", docs[0].MemoryStats.Limit)
		}
		began = time.Now()
		_, docs, _ = r.get(t, "/containers/web/stats?stream=0&one-shot=1", 0, nil)
		if len(docs) != 1 || !docs[0].PreRead.IsZero() || time.Since(began) != 0 {
			t.Errorf("one-shot: %d documents after %v: %+v", len(docs), time.Since(began), docs)
		}
		if _, docs, _ = r.get(t, "/v1.40/containers/web/stats?stream=0&one-shot=1", 0, nil); len(docs) != 1 || docs[0].PreRead.IsZero() {
			t.Errorf("1.40 knows no one-shot: %+v", docs)
		}
		for target, want := range map[string]int{"/containers/web/stats?one-shot=1": http.StatusBadRequest, "/containers/x/stats": http.StatusNotFound} {
			if code, _, text := r.get(t, target, 0, nil); code != want {
				t.Errorf("%s: %d %s", target, code, text)
			}
		}
	})
}

// TestStoppedContainer shows the documents of a container that stops during a stream, and the end of the stream after its
// removal.
func TestStoppedContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, docs, _ := r.get(t, "/containers/web/stats", 0, func(n int) {
			switch n {
			case 1:
				r.Supervisor.Exit(core.Ref{Container: r.c.ID}, 0)
				r.Settle()
			case 3:
				if err := r.As(core.OwnerDocker).RemoveContainer(t.Context(), r.c.ID, engine.RemoveOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
		if len(docs) != 3 || docs[0].Read.IsZero() || !docs[1].Read.IsZero() || docs[2].ID != string(r.c.ID) {
			t.Errorf("documents %+v", docs)
		}
	})
	r := newRig(t)
	r.Supervisor.Exit(core.Ref{Container: r.c.ID}, 0)
	r.Settle()
	_, _, text := r.get(t, "/containers/web/stats?stream=false", 0, nil)
	for _, want := range []string{`"name":"/web"`, `"read":"0001-01-01T00:00:00Z"`, `"memory_stats":{}`, `"pids_stats":{}`, `"io_service_bytes_recursive":null`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if code, _, text := r.get(t, "/containers/web/top", 0, nil); code != http.StatusConflict || !strings.Contains(text, fmt.Sprintf("container %s is not running", r.c.ID)) {
		t.Errorf("top: %d %s", code, text)
	}
}

func TestVersion1(t *testing.T) {
	st := core.Stats{
		CPU:    core.CPUStats{PerCPU: []uint64{1, 2}},
		Memory: core.MemoryStats{Peak: core.Known(7), Raw: map[string]uint64{"total_inactive_file": 3}},
		IO:     []core.IOStats{{Major: 8, Minor: 1, ReadBytes: 5, WriteBytes: 6, Reads: 7, Writes: 8}},
	}
	var doc, v2 dockertypes.Stats
	fill(&doc, &st, false)
	fill(&v2, &st, true)
	if !slices.Equal(doc.CPUStats.CPUUsage.PercpuUsage, []uint64{1, 2}) || doc.MemoryStats.MaxUsage != 7 || doc.MemoryStats.Stats["total_inactive_file"] != 3 {
		t.Errorf("v1: %+v", doc)
	}
	b := doc.BlkioStats
	if b.IoServicedRecursive[1] != (dockertypes.BlkioEntry{Major: 8, Minor: 1, Op: "Write", Value: 8}) || b.IoServiceBytesRecursive[0].Op != "Read" || b.SectorsRecursive == nil {
		t.Errorf("v1: %+v", b)
	}
	if v2.CPUStats.CPUUsage.PercpuUsage != nil || v2.MemoryStats.MaxUsage != 0 || v2.BlkioStats.SectorsRecursive != nil {
		t.Errorf("v2: %+v", v2)
	}
}

func TestCPUTime(t *testing.T) {
	total, cpus, err := cpuTime([]byte("cpu  1 2 3 4 5 6 7 100 100\ncpu0 1 2 3 4 5 6 7\ncpu1 0 0 0 0 0 0 0\nintr 5\n"))
	if total != 280_000_000 || cpus != 2 || err != nil {
		t.Errorf("%d %d %v", total, cpus, err)
	}
	for _, bad := range []string{"cpu 1 2\n", "cpu a 2 3 4 5 6 7\n"} {
		if _, _, err := cpuTime([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

const listing = `UID          PID    PPID  C STIME TTY          TIME CMD
root           1       0  0 10:00 ?        00:00:01 /sbin/init
root          17       1  0 10:00 ?        00:00:01 sh -c  echo a b
-              -       -  0 10:00 -        00:00:00 -
root          18       1  0 10:00 ?        00:00:01 other
-              -       -  0 10:00 -        00:00:00 -
`

func TestParse(t *testing.T) {
	top, err := parse([]byte(listing), []int{17})
	want := [][]string{{"root", "17", "1", "0", "10:00", "?", "00:00:01", "sh -c echo a b"}, {"-", "-", "-", "0", "10:00", "-", "00:00:00", "-"}}
	if err != nil || fmt.Sprint(top.Processes) != fmt.Sprint(want) || len(top.Titles) != 8 {
		t.Errorf("%+v, %v", top, err)
	}
	for _, bad := range []string{"", "COMMAND\nsh\n", "PID\nx\n"} {
		if _, err := parse([]byte(bad), []int{1}); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestArguments(t *testing.T) {
	for text, want := range map[string]string{"": "-ef", " ": "-ef", "aux": "aux", "-o pid=,comm": "-o pid=,comm", "-o pid=PID,comm": "-o pid=PID,comm"} {
		if args, err := arguments(text); err != nil || strings.Join(args, " ") != want {
			t.Errorf("%q: %q, %v", text, args, err)
		}
	}
	for _, bad := range []string{"-o xx=PID", "-o comm=PID", "-o pid,comm=PID", "a\x00b", strings.Repeat("x", maxArgs+1)} {
		if args, err := arguments(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %q, %v", bad, args, err)
		}
	}
}

// TestListsThisProcess runs the machine's ps.
func TestListsThisProcess(t *testing.T) {
	me := os.Getpid()
	for _, args := range [][]string{{"-ef"}, {"aux"}, {"-e", "-o", "pid,comm", "f"}} { // the last one excludes -q
		top, err := list(t.Context(), args, []int{me})
		if err != nil || len(top.Processes) != 1 || top.Processes[0][slices.Index(top.Titles, "PID")] != fmt.Sprint(me) {
			t.Errorf("ps %v: %+v, %v", args, top, err)
		}
	}
	if top, err := list(t.Context(), []string{"-ef"}, nil); err != nil || len(top.Processes) != 0 {
		t.Errorf("no process: %+v, %v", top, err)
	}
	if _, err := list(t.Context(), []string{"--nonesuch"}, []int{me}); err == nil || !strings.HasPrefix(err.Error(), "ps: ") {
		t.Errorf("error %v", err)
	}
}

func TestTop(t *testing.T) {
	r := newRig(t)
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/containers/web/top?ps_args=-o+pid,comm", nil))
	if w.Code != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(w.Body.String()), `"Titles":["PID","COMMAND"]}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if want := []string{"container top " + string(r.c.ID)}; !slices.Equal(r.events, want) {
		t.Errorf("events %q, want %q", r.events, want)
	}
}

// TestReadersSeeNoEnvironment shows that a client of the read socket cannot have ps print environments.
func TestReadersSeeNoEnvironment(t *testing.T) {
	r := newRig(t)
	r.s.HidesEnv = func(context.Context) bool { return true }
	for args, want := range map[string]int{"": http.StatusOK, "-ef": http.StatusOK, "auxe": http.StatusForbidden, "-ef+e": http.StatusForbidden, "-o+pid,environ": http.StatusForbidden} {
		w := httptest.NewRecorder()
		if r.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/containers/web/top?ps_args="+args, nil)); w.Code != want {
			t.Errorf("%q: %d %s", args, w.Code, w.Body)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(listing))
	f.Add([]byte("PID\n-\n1\n-"))
	f.Fuzz(func(t *testing.T, out []byte) {
		top, err := parse(out, []int{1, 17})
		if err != nil {
			return
		}
		for _, p := range top.Processes {
			if len(p) > len(top.Titles) {
				t.Errorf("%d columns of %d: %q", len(p), len(top.Titles), p)
			}
		}
	})
}

func FuzzCPUTime(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8\ncpu0 1\n"))
	f.Fuzz(func(_ *testing.T, stat []byte) { _, _, _ = cpuTime(stat) })
}
