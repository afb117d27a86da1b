package cri

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// cutsEnv is how many exec sessions TestCutStreams opens; of attach streams it
// opens a fifth of it.
const cutsEnv = "LONGSHORE_CUTS"

// TestCutStreams opens exec sessions and attach streams and cuts most of them at
// random points of their protocol or their life. Of those nothing is left, the
// others get every byte, and clients that stand still are in nobody's way.
func TestCutStreams(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		sessions := 100
		if s := os.Getenv(cutsEnv); s != "" {
			var err error
			if sessions, err = strconv.Atoi(s); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d exec sessions, %d attach streams, seed %d", sessions, sessions/5, seed)
		s := &cutSuite{n: streamNode{n}, image: n.Busybox(t), rnd: rand.New(rand.NewPCG(seed, 0))}
		s.pod = n.RunPod(t, n.PodConfig("cuts"))
		// Its first process reaps the orphans of execs.
		s.c = s.pod.Run(t, nodetest.ContainerConfig("c", s.image, "/bin/sh", "-c", "sleep 100000 & wait"))
		t.Run("orphans", s.orphans)
		t.Run("agent killed", s.agentKilled)
		s.wholeExec(t) // makes the things that stay
		s.idle(t)
		before := s.holdings(t)
		s.storm(t, sessions)
		if t.Failed() {
			return
		}
		t.Logf("%d exec sessions cut, %d whole, %d attach streams cut, %d whole, %d stuck", s.cut.Load(), s.whole.Load(), s.attachCut.Load(), s.attachWhole.Load(), s.stuck.Load())
		s.idle(t)
		s.nothingLeft(t, before)
		s.pod.Remove(t)
		n.Check()
	})
}

type cutSuite struct {
	n     streamNode
	image string
	pod   *nodetest.Pod
	c     *nodetest.Container

	mu     sync.Mutex
	rnd    *rand.Rand // guarded by mu
	serial int        // guarded by mu

	cut, whole, attachCut, attachWhole, stuck atomic.Int64
}

// around is a random number up to n, of all sizes, the smaller the more often.
func (s *cutSuite) around(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(1 + s.rnd.IntN(1+s.rnd.IntN(n)))
}

func (s *cutSuite) below(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

func (s *cutSuite) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	return s.serial
}

// orphans: the processes that a cut exec leaves go with it, though the exec itself has just
// ended; those of a whole one stay.
func (s *cutSuite) orphans(t *testing.T) {
	w := want{fuse: newFuse(math.MaxInt)}
	x := s.n.exec(t, s.c.ID, w, "/bin/sh", "-c", "sleep 72001 & exec /bin/yes")
	w.fuse.held.Store(true)
	var pid int
	nodetest.Eventually(t, "it writes", func() bool {
		pids := nodetest.Processes("yes", "")
		if len(pids) != 1 {
			return false
		}
		pid = pids[0]
		return true
	})
	// It has stopped when it waits, and still waits while others are served.
	nodetest.Eventually(t, "nothing more goes to its client", func() bool {
		wrote, waits := written(t, pid)
		for range 3 {
			if _, err := s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: s.c.ID, Cmd: []string{"/bin/true"}}); err != nil {
				t.Fatal(err)
			}
		}
		after, still := written(t, pid)
		return waits && still && after == wrote
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "its end is on record", func() bool {
		execs := s.execs(t)
		return len(execs) == 1 && execs[0].Autopsy != nil
	})
	if left := nodetest.Processes("sleep", "72001"); len(left) != 1 {
		t.Errorf("before the cut: %v", left)
	}
	x.cut()
	nodetest.Eventually(t, "what it left has ended", func() bool { return len(nodetest.Processes("sleep", "72001")) == 0 })

	y := s.n.exec(t, s.c.ID, want{}, "/bin/sh", "-c", "sleep 72002 >/dev/null 2>&1 &")
	if code, text := y.status(t); code != 0 {
		t.Errorf("code %d (%s)", code, text)
	}
	if _, err := s.n.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: s.c.ID, Cmd: []string{"/bin/sh", "-c", "sleep 72002 >/dev/null 2>&1 &"}}); err != nil {
		t.Error(err)
	}
	nodetest.Eventually(t, "their records are gone", func() bool { return len(s.execs(t)) == 0 })
	nodetest.Eventually(t, "what two execs left that were not cut goes on", func() bool { return len(nodetest.Processes("sleep", "72002")) == 2 })
	for _, pid := range nodetest.Processes("sleep", "72002") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// written is how many bytes a process has written, and whether it waits.
func written(t *testing.T, pid int) (bytes string, waits bool) {
	t.Helper()
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(io), "wchar: ")
	bytes, _, _ = strings.Cut(after, "\n")
	return bytes, strings.Contains(string(stat), ") S ")
}

// agentKilled: the clients of execs go with the agent, and the execs with all that
// they started.
func (s *cutSuite) agentKilled(t *testing.T) {
	for range 5 {
		x := s.n.exec(t, s.c.ID, want{stdin: true}, "/bin/sh", "-c", "(trap '' HUP; sleep 72003) & sleep 72003 & echo on; cat")
		nodetest.Eventually(t, "it runs", func() bool { return x.stdout.String() == "on\n" })
	}
	s.n.Kill()
	s.n.Up()
	nodetest.Eventually(t, "nothing of the execs is left", func() bool {
		return len(nodetest.Processes("sleep", "72003")) == 0 && len(s.execs(t)) == 0
	})
	if c := s.c.Status(t); c.GetState() != v1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %s", c.GetState())
	}
}

// storm opens so many exec sessions and a fifth of it attach streams, some of each
// at a time.
func (s *cutSuite) storm(t *testing.T, sessions int) {
	t.Helper()
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range jobs {
				if i%5 == 0 {
					s.wholeExec(t)
				} else {
					s.cutExec(t)
				}
			}
		})
	}
	wg.Go(func() {
		for left := sessions / 5; left > 0; left -= attachers {
			s.attach(t, min(left, attachers))
		}
	})
	for i := range sessions {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
}

// cutExec runs something that does not end, or not soon, and cuts it: after some
// bytes, or after some time.
func (s *cutSuite) cutExec(t *testing.T) {
	const kin = "(trap '' HUP INT TERM; sleep 73000) & sleep 73000 & "
	kinds := []struct {
		script            string
		stdin, ended, tty bool
	}{
		{script: "yes"},
		{script: kin + "wait"},
		{script: kin + "echo on; cat", stdin: true},
		{script: kin + "cat; wait", stdin: true, ended: true},
		{script: kin + "while :; do echo tick; sleep 0.01; done"},
		{script: "while :; do sleep 0.002 & sleep 0.001; done"},
		{script: "sh -c \"" + kin + "wait\" & wait"},
		{script: kin + "yes | cat", stdin: true},
		{script: kin + "head -c 3000000 /dev/zero; exec cat", stdin: true, tty: true},
		{script: kin + "cat; wait", stdin: true, ended: true, tty: true},
		{script: "true"},
	}
	k := kinds[s.below(len(kinds))]
	w := want{stdin: k.stdin, tty: k.tty, websocket: protocols()[s.below(len(protocols()))], fuse: newFuse(s.around(4 << 20))}
	if s.below(4) == 0 {
		w.stuck = make(chan struct{})
		defer close(w.stuck)
	}
	timer := time.AfterFunc(time.Duration(s.around(300))*time.Millisecond, w.fuse.blow)
	defer timer.Stop()
	input := make([]byte, s.around(200_000))
	go func() { // a wait for an answer that was cut off ends later
		x, err := s.n.tryExec(t.Context(), s.c.ID, w, "/bin/sh", "-c", k.script)
		if err != nil {
			w.refused(t, "exec", err)
			return
		}
		if k.tty {
			_ = x.resize(80, 25)
		}
		if k.stdin && x.write(input) == nil && k.ended {
			_ = x.closeStdin()
		}
		<-x.done
		w.fuse.blow() // it came to its end before
	}()
	<-w.fuse.blown
	s.cut.Add(1)
}

// refused is for a stream that did not open, which is no error when it was cut.
func (w want) refused(t *testing.T, what string, err error) {
	select {
	case <-w.fuse.blown:
	default:
		t.Errorf("%s: %v", what, err)
		w.fuse.blow()
	}
}

// wholeExec reads random bytes to the last one, and their sum.
func (s *cutSuite) wholeExec(t *testing.T) {
	size := s.around(2 << 20)
	script := fmt.Sprintf("f=/tmp/%d; head -c %d /dev/urandom > $f; sha256sum < $f >&2; cat $f; rm $f; exit 3", s.next(), size)
	x, err := s.n.tryExec(t.Context(), s.c.ID, want{websocket: protocols()[s.below(len(protocols()))]}, "/bin/sh", "-c", script)
	if err != nil {
		t.Errorf("exec: %v", err)
		return
	}
	defer x.cut()
	code, text := x.outcome()
	sum := sha256.Sum256([]byte(x.stdout.String()))
	if code != 3 || len(x.stdout.String()) != size || x.stderr.String() != hex.EncodeToString(sum[:])+"  -\n" {
		t.Errorf("code %d (%s), %d bytes of %d, sum %x, want %s", code, text, len(x.stdout.String()), size, sum, x.stderr)
	}
	s.whole.Add(1)
}

const (
	// attachers are the streams to one container. Of them so many stay, and one
	// stands still.
	attachers, staying = 20, 4
	// attachLines are more than sockets keep for a client that does not read.
	attachLines = 1_000_000
)

// attach attaches to a container that begins to write once the staying clients and the stuck
// one have said so, and that ends despite the stuck one.
func (s *cutSuite) attach(t *testing.T, streams int) {
	stay := min(staying, streams-1)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do read x; i=$((i+1)); done; seq 1 %d; exit 5", stay+1, attachLines)
	cfg := nodetest.ContainerConfig("attach-"+strconv.Itoa(s.next()), s.image, "/bin/sh", "-c", script)
	cfg.Stdin = true
	c := s.pod.Run(t, cfg)
	var cuts, whole sync.WaitGroup
	for range streams - stay - 1 {
		cuts.Go(func() { s.cutAttach(t, c) })
	}
	still := want{stdin: true, stuck: make(chan struct{})}
	x, err := s.n.tryAttach(t.Context(), c.ID, still)
	if err == nil {
		err = x.write([]byte("go\n"))
	}
	if err != nil {
		t.Errorf("attach: %v", err)
		return
	}
	for range stay {
		whole.Go(func() { s.wholeAttach(t, c) })
	}
	whole.Wait()
	if st := c.WaitExited(t); st.GetExitCode() != 5 {
		t.Errorf("the container ended with %d", st.GetExitCode())
	}
	select {
	case <-x.done:
		t.Error("the client that takes nothing has come to an end")
	default:
	}
	x.cut()
	close(still.stuck)
	s.stuck.Add(1)
	cuts.Wait()
	if _, err := s.n.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		t.Error(err)
	}
	_ = os.Remove(c.Log)
}

// wholeAttach lets the container begin, and reads its output to the last byte.
func (s *cutSuite) wholeAttach(t *testing.T, c *nodetest.Container) {
	x, err := s.n.tryAttach(t.Context(), c.ID, want{stdin: true, websocket: protocols()[s.below(len(protocols()))]})
	if err == nil {
		err = x.write([]byte("go\n"))
	}
	if err != nil {
		t.Errorf("attach: %v", err)
		return
	}
	defer x.cut()
	code, text := x.outcome()
	if out := x.stdout.String(); code != 0 || !counts(out) {
		t.Errorf("attach: code %d (%s), %d bytes, the last %q", code, text, len(out), out[max(len(out)-100, 0):])
	}
	s.attachWhole.Add(1)
}

// counts reports whether a text is all numbers in order, one in each line.
func counts(text string) bool {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if line != strconv.Itoa(n)+"\n" {
			return false
		}
	}
	return n == attachLines
}

// cutAttach is cutExec for an attach, which the container does not notice.
func (s *cutSuite) cutAttach(t *testing.T, c *nodetest.Container) {
	w := want{stdin: s.below(2) == 0, websocket: protocols()[s.below(len(protocols()))], fuse: newFuse(s.around(8 << 20))}
	timer := time.AfterFunc(time.Duration(s.around(3000))*time.Millisecond, w.fuse.blow)
	defer timer.Stop()
	go func() {
		x, err := s.n.tryAttach(t.Context(), c.ID, w)
		if err != nil {
			if status.Code(err) != codes.FailedPrecondition { // the container has ended
				w.refused(t, "attach", err)
			}
			w.fuse.blow()
			return
		}
		<-x.done
		w.fuse.blow()
	}()
	<-w.fuse.blown
	s.attachCut.Add(1)
}

// execs are the records of the container's execs.
func (s *cutSuite) execs(t *testing.T) []struct{ Autopsy *struct{} } {
	t.Helper()
	out, err := s.n.CLI("inspect", s.c.ID)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Record struct {
			Execs []struct{ Autopsy *struct{} }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		t.Fatalf("inspect: %v\n%s", err, out)
	}
	return list[0].Record.Execs
}

// idle waits until the agent serves no stream any more: a connection may linger.
func (s *cutSuite) idle(t *testing.T) {
	t.Helper()
	r, err := s.n.CRI.Exec(t.Context(), &v1.ExecRequest{ContainerId: s.c.ID, Cmd: []string{"/bin/true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(r.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "no connection is left", func() bool {
		b, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] != tcpListen && f[3] != tcpTimeWait {
				return false
			}
		}
		return true
	})
}

// The states of a connection in /proc/net/tcp that are nobody's.
const tcpListen, tcpTimeWait = "0A", "06"

// nothingLeft wants nothing that was not there before.
func (s *cutSuite) nothingLeft(t *testing.T, before map[string][]string) {
	t.Helper()
	var more map[string][]string
	t.Cleanup(func() {
		for kind, list := range more {
			t.Logf("%s that were not there before: %q", kind, list)
		}
	})
	nodetest.Eventually(t, "nothing of the streams is left", func() bool {
		more = map[string][]string{}
		for kind, now := range s.holdings(t) {
			if list := nodetest.More(now, before[kind]); len(list) > 0 {
				more[kind] = list
			}
		}
		return len(more) == 0
	})
}

// holdings are possible leaks, by kind.
func (s *cutSuite) holdings(t *testing.T) map[string][]string {
	t.Helper()
	h := map[string][]string{
		"files":             nodetest.Tree(t, s.n.State),
		"descriptors agent": nodetest.Descriptors(t, s.n.Pid()),
		"goroutines":        s.goroutines(t),
	}
	for range s.execs(t) {
		h["execs"] = append(h["execs"], "exec")
	}
	for _, role := range []string{"keeper", "nest"} {
		for _, pid := range nodetest.Pair(role) {
			h["descriptors "+role] = nodetest.Descriptors(t, pid)
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		name := strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
		if name == "" { // a thread of the kernel, or a zombie
			name = string(b[bytes.IndexByte(b, '(') : bytes.LastIndexByte(b, ')')+3])
		}
		h["processes"] = append(h["processes"], name)
	}
	return h
}

// goroutines are the agent's, by their maker.
func (s *cutSuite) goroutines(t *testing.T) []string {
	t.Helper()
	out, err := s.n.CLI("debug", "dump", "-o", "-")
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zip); ; {
		hdr, err := tr.Next()
		if err != nil {
			t.Fatalf("dump: %v", err)
		}
		if filepath.Base(hdr.Name) != "goroutines.txt" {
			continue
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for one := range strings.SplitSeq(string(text), "\n\n") {
			_, by, _ := strings.Cut(one, "created by ")
			by, _, _ = strings.Cut(by, " in goroutine")
			list = append(list, by)
		}
		return list
	}
}
