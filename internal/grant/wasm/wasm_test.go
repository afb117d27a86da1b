package wasm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/compiled"
	"github.com/longshore/longshore/internal/roottest"
)

// TestMain is longshore-wasm when the test starts itself as such.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"run", "compile", compiled.ChildArg}, os.Args[1]) {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// Errors of preview 1.
const (
	success = 0
	eacces  = 2
	eio     = 29
	enoent  = 44
	eperm   = 63
	erofs   = 69
)

// given is one grant and the file that is passed for it.
type given struct {
	grant grant.Grant
	file  *os.File
}

// worker is a worker under test.
type worker struct {
	t        *testing.T
	job      Job
	files    []*os.File // from descriptor 4 on
	log      *os.File
	env      []string
	messages bytes.Buffer
}

func openFile(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// newWorker prepares a worker for a module with these grants, besides a log.
func newWorker(t *testing.T, module []byte, grants ...given) *worker {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "module.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	w := &worker{t: t, job: Job{Args: []string{"module.wasm"}, Argdata: []byte(`{"a":1}`)}}
	w.log = openFile(t, filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND)
	for _, g := range append([]given{{grant.Grant{Kind: grant.Log}, w.log}}, grants...) {
		number := w.pass(g.file)
		w.job.Descriptors = append(w.job.Descriptors, grant.Descriptor{Number: number, Name: fmt.Sprintf("g%d", number), Grant: g.grant})
	}
	w.job.Module = w.pass(openFile(t, path, os.O_RDONLY))
	return w
}

func (w *worker) pass(f *os.File) int {
	w.files = append(w.files, f)
	return grant.FirstNumber + len(w.files) - 1
}

// start starts the worker as a process of its own.
func (w *worker) start() *exec.Cmd {
	w.t.Helper()
	data, err := json.Marshal(w.job)
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.t.TempDir(), "job")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), os.Args[0], "run")
	cmd.Env = append([]string{}, w.env...)
	cmd.Stderr = &w.messages
	cmd.ExtraFiles = append([]*os.File{openFile(w.t, path, os.O_RDONLY)}, w.files...)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return cmd
}

// end waits for the worker, and returns its exit status and the program's output.
func (w *worker) end(cmd *exec.Cmd) (int, []byte) {
	w.t.Helper()
	_ = cmd.Wait()
	data, err := io.ReadAll(io.NewSectionReader(w.log, 0, 1<<20))
	if err != nil {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), data
}

// expect runs the worker and compares its output: a text, then the results of its calls.
func (w *worker) expect(text string, results ...uint32) {
	w.t.Helper()
	status, out := w.end(w.start())
	w.compare(status, out, text, results...)
}

func (w *worker) compare(status int, out []byte, text string, results ...uint32) {
	w.t.Helper()
	written, ok := bytes.CutPrefix(out, []byte(text))
	if status != 0 || !ok {
		w.t.Errorf("status %d, wrote %q, want %q; messages: %s", status, out, text, w.messages.String())
		return
	}
	var got []uint32
	for ; len(written) >= 4; written = written[4:] {
		got = append(got, binary.LittleEndian.Uint32(written))
	}
	if !slices.Equal(got, results) {
		w.t.Errorf("its calls returned %d, want %d", got, results)
	}
}

func directory(t *testing.T, files map[string]string) (string, *os.File) {
	t.Helper()
	dir := t.TempDir()
	for n, text := range files {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, openFile(t, dir, os.O_RDONLY)
}

func TestAProgramReadsItsArgumentAndItsMounts(t *testing.T) {
	rw, rwFile := directory(t, map[string]string{"in": "content"})
	_, roFile := directory(t, map[string]string{"in": "read only"})
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": outside, "up": "../" + filepath.Base(filepath.Dir(outside)) + "/secret", "inside": "in"} {
		if err := os.Symlink(target, filepath.Join(rw, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := &program{}
	p.copyOut(p.open(3, ArgdataFile, 0, rightRead))
	p.copyOut(p.open(4, "in", 0, rightRead))
	p.copyOut(p.open(4, "inside", 0, rightRead))
	p.copyOut(p.open(5, "in", 0, rightRead))
	p.write(p.open(4, "new", oCreate, rightWrite), "written")
	p.open(5, "new", oCreate, rightWrite)
	p.open(5, "in", 0, rightWrite)
	p.open(4, "absolute", 0, rightRead)
	p.open(4, "up", 0, rightRead)
	p.open(3, "etc/passwd", 0, rightRead)
	p.open(3, ArgdataFile, 0, rightWrite)
	at, size := p.text("sub")
	p.call("path_create_directory", 5, at, size)
	p.call("path_create_directory", 4, at, size)
	etc, n := p.text("/etc")
	p.call("path_symlink", etc, n, 4, at, size)
	p.call("path_unlink_file", 5, at, size)
	w := newWorker(t, p.finish(),
		given{grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write}, rwFile},
		given{grant.Grant{Kind: grant.Mount, Name: "/site", Rights: grant.Read}, roFile})
	w.expect(`{"a":1}contentcontentread only`, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, erofs, erofs, eperm, eperm, enoent, erofs, erofs, success, eperm, erofs)
	if data, err := os.ReadFile(filepath.Join(rw, "new")); err != nil || string(data) != "written" {
		t.Errorf("it wrote %q, %v", data, err)
	}
}

func TestWhatWasNotGrantedIsAnError(t *testing.T) {
	null := openFile(t, os.DevNull, os.O_RDONLY)
	p := &program{}
	p.call("random_get", atBuffers, 8)
	p.open(3, "fd/5", 0, rightRead)
	p.open(3, "fd/4", 0, rightRead) // the log can only be written
	p.write(p.open(3, "fd/4", 0, rightWrite), "by path ")
	p.call("environ_sizes_get", atBuffers, atBuffers+4)
	code := p.finish()
	newWorker(t, code).expect("by path ", eio, enoent, eacces, 0, 0, 0)
	w := newWorker(t, code, given{grant.Grant{Kind: grant.Random}, null})
	w.expect("by path ", 0, 0, eacces, 0, 0, 0)
}

func TestAListenerIsAccepted(t *testing.T) {
	for _, how := range []string{"blocking", "not blocking"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		p := &program{}
		fd := p.open(3, "fd/5", 0, rightRead|rightWrite)
		p.call("sock_accept", fd, 0, atBuffers)
		p.copyOut(load(atBuffers))
		p.write(load(atBuffers), "answer")
		p.call("sock_shutdown", load(atBuffers), 2)
		p.call("sock_accept", 3, 0, atBuffers) // the first preopen is no socket
		w := newWorker(t, p.finish(), given{grant.Grant{Kind: grant.Listen, Protocol: grant.TCP, Port: 80}, file})
		if how == "blocking" { // the program does not see this change by the agent
			_ = file.Fd()
		}
		cmd := w.start()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil || string(answer) != "answer" {
			t.Errorf("%s: the answer is %q, %v", how, answer, err)
		}
		status, out := w.end(cmd)
		w.compare(status, out, "question", 0, 0, 0, 0, 0, 0, 8)
		_, _, _ = c.Close(), file.Close(), l.Close()
	}
}

// TestASignalEndsAProgram: it has none of its own, and its process is the first of a pid namespace.
func TestASignalEndsAProgram(t *testing.T) {
	r, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), stop.Close() }()
	p := &program{}
	p.write(1, "ready")
	p.copyOut(p.open(3, "fd/5", 0, rightRead))
	w := newWorker(t, p.finish(), given{grant.Grant{Kind: grant.Shutdown}, r})
	cmd := w.start()
	roottest.Eventually(t, "the program waits", func() bool {
		st, err := w.log.Stat()
		return err == nil && st.Size() > 0
	})
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, out := w.end(cmd); status != 128+int(unix.SIGTERM) || string(out) != "ready" {
		t.Errorf("status %d, wrote %q", status, out)
	}
}

// TestASignalEndsABusyProgram: one that makes no calls, also while it has the only processor of Go's scheduler, or while a garbage
// collection waits for it.
func TestASignalEndsABusyProgram(t *testing.T) {
	for _, env := range [][]string{{}, {"GOMAXPROCS=1"}, {"GOGC=1", "GODEBUG=gcstoptheworld=2"}} {
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2} {
			p := &program{}
			p.write(1, "ready")
			p.code = append(p.code, 0x03, 0x40, 0x0c, 0, 0x0b) // loop without end
			w := newWorker(t, p.module())
			w.env = env
			cmd := w.start()
			roottest.Eventually(t, "the program is busy", func() bool {
				st, err := w.log.Stat()
				return err == nil && st.Size() > 0
			})
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			ended := make(chan int, 1)
			go func() {
				status, _ := w.end(cmd)
				ended <- status
			}()
			select {
			case status := <-ended:
				if status != 128+int(sig) {
					t.Errorf("%v, %v: it ended with %d", env, sig, status)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%v, %v: it goes on", env, sig)
				_ = cmd.Process.Kill()
				<-ended
			}
		}
	}
}

func TestShutdownIsTheEndOfAFile(t *testing.T) {
	r, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	p := &program{}
	p.write(1, "ready")
	p.copyOut(p.open(3, "fd/5", 0, rightRead))
	w := newWorker(t, p.finish(), given{grant.Grant{Kind: grant.Shutdown}, r})
	cmd := w.start()
	if err := stop.Close(); err != nil {
		t.Fatal(err)
	}
	status, out := w.end(cmd)
	w.compare(status, out, "ready", 0, 0, 0, 0)
}

func TestHowAProgramEndedIsTold(t *testing.T) {
	exit := &program{}
	exit.push(7)
	exit.code = append(append(exit.code, 0x10), uleb(exit.function("proc_exit"))...)
	trap := &program{code: []byte{0x00}}
	null := openFile(t, os.DevNull, os.O_RDONLY)
	udp := given{grant.Grant{Kind: grant.Listen, Protocol: grant.UDP, Port: 53}, null}
	for _, c := range []struct {
		name   string
		module []byte
		grants []given
		status int
		told   string
	}{
		{"an exit", exit.module(), nil, 7, ""},
		{"a trap", trap.module(), nil, StatusTrap, "function[_start] failed: wasm error: unreachable"},
		{"no module", []byte("\x00asm\x01\x00\x00\x00\x63"), nil, StatusNotRun, "the module cannot be compiled"},
		{"half a module", trap.module()[:40], nil, StatusNotRun, "the module cannot be compiled"},
		{"a socket of UDP", exit.module(), []given{udp}, StatusNoJob, "WASI preview 1 has no sockets of udp"},
	} {
		w := newWorker(t, c.module, c.grants...)
		status, out := w.end(w.start())
		if status != c.status || !strings.Contains(w.messages.String(), c.told) || len(out) != 0 || c.told == "" && w.messages.Len() != 0 {
			t.Errorf("%s: status %d, messages %q, output %q", c.name, status, w.messages.String(), out)
		}
	}
}

func TestAJobIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{`:              "unexpected end",
		`{"module": 2}`:  "the module has the descriptor 2",
		`{"module": 3}`:  "the module has the descriptor 3",
		`{"module": -1}`: "the module has the descriptor -1",
		`{"module": 5, "descriptors": [{"number": 5, "name": "x"}]}`: "x has the descriptor 5",
		`{"module": 5, "compiled": 5}`:                               "the compiled module has the descriptor 5",
		`{"module": 5, "compiled": 5000}`:                            "has the descriptor 5000",
		strings.Repeat(" ", maxJob+1):                                "more than",
	} {
		if j, err := ReadJob(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %+v, %v", text, j, err)
		}
	}
	w := newWorker(t, (&program{}).finish())
	w.job.Descriptors = append(w.job.Descriptors, grant.Descriptor{Number: 900, Name: "lost", Grant: grant.Grant{Kind: grant.Clock}})
	if status, _ := w.end(w.start()); status != StatusNoJob || !strings.Contains(w.messages.String(), "grant lost was not passed") {
		t.Errorf("a descriptor that is not there: status %d, %s", status, w.messages.String())
	}
}
