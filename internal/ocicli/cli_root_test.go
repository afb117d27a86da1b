package ocicli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

func TestCommandLine(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		for _, c := range []struct {
			name string
			test func(*testing.T, *machine)
		}{
			{"a whole life", wholeLife},
			{"grants", grants},
			{"limits are changed and read back", updates},
			{"exec's options", execOptions},
			{"users of processes", users},
			{"mounts onto links that lead to nothing", links},
			{"a terminal by the console socket", terminals},
			{"run", foreground},
			{"descriptors are passed on", preserved},
			{"hooks at all six points", hooks},
			{"one ID, many creates", concurrent},
			{"a failed create leaves nothing", failed},
			{"delete --force", forced},
			{"a later process of the same number", reused},
			{"errors in the log", logged},
			{"a create that is killed", killed},
			{"our own file", overwritten},
			{"somebody else's mount namespace", borrowed},
			{"sysctls of the host", hostSysctls},
		} {
			t.Run(c.name, func(t *testing.T) { c.test(t, m) })
		}
	})
}

// grants: a container with a document is not run as an ordinary one.
func grants(t *testing.T, m *machine) {
	s := m.spec("true")
	s.Annotations = map[string]string{core.GrantAnnotation: "{}"}
	m.write(t, s)
	m.mustNot(t, "only the agent grants", "run", "a")
	m.mustNot(t, "does not exist", "state", "a")
}

func wholeLife(t *testing.T, m *machine) {
	m.write(t, m.spec("echo began; sleep 1000"))
	m.must(t, "create", "--pid-file", "/run/pid", "a")
	s := m.state(t, "a")
	pid, err := os.ReadFile("/run/pid")
	if err != nil || string(pid) != strconv.Itoa(s.Pid) || s.Status != specs.StateCreated || s.Bundle != m.bundle {
		t.Errorf("created: %+v, pid file %q, %v", s, pid, err)
	}
	if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Pid)); strings.Contains(string(comm), "sleep") {
		t.Error("its program runs already")
	}
	m.mustNot(t, "already exists", "create", "a")
	m.must(t, "start", "a")
	if s := m.state(t, "a"); s.Status != specs.StateRunning || strconv.Itoa(s.Pid) != string(pid) {
		t.Errorf("started: %+v", s)
	}
	m.mustNot(t, "running", "start", "a")
	m.mustNot(t, "not stopped", "delete", "a")
	if out := m.must(t, "exec", "--env", "A=b", "--cwd", "/tmp", "--user", "7:8", "a", "sh", "-c", "echo $A $PWD $(id -u):$(id -g)"); out != "b /tmp 7:8\n" {
		t.Errorf("exec: %q", out)
	}
	if r := m.do(t, "exec", "a", "sh", "-c", "exit 7"); r.status != 7 {
		t.Errorf("exec's status: %+v", r)
	}
	if r := m.do(t, "exec", "a", "sh", "-c", "kill -9 $$"); r.status != 137 {
		t.Errorf("exec's status when killed: %+v", r)
	}
	if r := m.do(t, "exec", "a", "/no/such"); r.status != 255 || !strings.Contains(r.err, "no such file or directory") {
		t.Errorf("exec of nothing: %+v", r)
	}
	if out := m.must(t, "ps", "--format", "json", "a"); out != "["+string(pid)+"]\n" {
		t.Errorf("ps: %q", out)
	}
	m.must(t, "pause", "a")
	if s := m.state(t, "a"); s.Status != "paused" {
		t.Errorf("paused: %+v", s)
	}
	m.mustNot(t, "paused", "exec", "a", "true")
	m.must(t, "resume", "a")
	var all []specs.State
	if err := json.Unmarshal([]byte(m.must(t, "list", "--format", "json")), &all); err != nil || len(all) != 1 || all[0].Status != specs.StateRunning {
		t.Errorf("list: %+v, %v", all, err)
	}
	var event struct {
		Data struct {
			Pids struct{ Current int }
		}
	}
	if err := json.Unmarshal([]byte(m.must(t, "events", "--stats", "a")), &event); err != nil || event.Data.Pids.Current != 1 {
		t.Errorf("events: %+v, %v", event, err)
	}
	m.must(t, "kill", "a", "KILL")
	m.until(t, "a", specs.StateStopped)
	m.mustNot(t, "not running", "kill", "a", "TERM")
	m.must(t, "delete", "a")
	m.mustNot(t, "does not exist", "state", "a")
	m.gone(t, "a")
}

func updates(t *testing.T, m *machine) {
	m.write(t, m.spec("sleep 1000"))
	m.must(t, "run", "--detach", "a")
	m.must(t, "update", "--memory", "64m", "--pids-limit", "33", "--cpu-quota", "20000", "--cpu-period", "100000", "a")
	res := `{"cpu":{"shares":512}}`
	cmd := m.command(t, "update", "--resources", "-", "a")
	cmd.Stdin = strings.NewReader(res)
	if r := m.run(t, cmd); r.status != 0 {
		t.Error(r.err)
	}
	tree, err := cgroup.New(cgroup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.Resources(t.Context(), core.CgroupRef{Path: m.cgroup})
	if err != nil {
		t.Fatal(err)
	}
	if *got.Memory.Limit != 64<<20 || *got.Pids.Limit != 33 || *got.CPU.Quota != 20000 || *got.CPU.Shares > 520 || *got.CPU.Shares < 500 {
		b, _ := json.Marshal(got)
		t.Errorf("%s", b)
	}
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
}

func execOptions(t *testing.T, m *machine) {
	m.write(t, m.spec("sleep 1000"))
	m.must(t, "run", "--detach", "a")
	caps := "grep CapEff /proc/self/status; id -G; grep NoNewPrivs /proc/self/status"
	if out := m.must(t, "exec", "--cap", "CAP_SYS_ADMIN", "--additional-gids", "77", "-g", "78", "a", "sh", "-c", caps); out != "CapEff:\t00000000a82425fb\n0 77 78\nNoNewPrivs:\t1\n" {
		t.Errorf("%q", out)
	}
	p := &specs.Process{Args: []string{"sh", "-c", "echo $A; pwd; id -u"}, Cwd: "/tmp", Env: []string{"PATH=/bin", "A=file"}, User: specs.User{UID: 5}}
	b, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile("/run/process.json", b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := m.must(t, "exec", "--process", "/run/process.json", "a"); out != "file\n/tmp\n5\n" {
		t.Errorf("%q", out)
	}
	sub, _ := filepath.Glob("/sys/fs/cgroup/*" + m.cgroup)
	more, _ := filepath.Glob("/sys/fs/cgroup" + m.cgroup)
	for _, dir := range append(sub, more...) {
		if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new one on v1
			if b, err := os.ReadFile(dir + "/" + f); err == nil && len(b) > 1 {
				_ = os.WriteFile(dir+"/sub/"+f, b, 0o644)
			}
		}
	}
	if out := m.must(t, "exec", "--cgroup", "/sub", "a", "sh", "-c", "grep -c :/sub$ /proc/self/cgroup"); out == "0\n" {
		t.Errorf("no cgroup is the one below: %q", out)
	}
	m.must(t, "pause", "a")
	m.mustNot(t, "paused", "exec", "a", "true")
	m.must(t, "resume", "a")
	m.mustNot(t, "want UID", "exec", "--user", "root", "a", "true")
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
}

// console listens for a terminal's master.
func console(t *testing.T) (path string, master func() *os.File) {
	t.Helper()
	path = t.TempDir() + "/console"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return path, func() *os.File {
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		b, oob := make([]byte, 100), make([]byte, 100)
		n, on, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil || len(msgs) != 1 {
			t.Fatalf("%v, %v", msgs, err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			t.Fatalf("%v, %v", fds, err)
		}
		return os.NewFile(uintptr(fds[0]), "master")
	}
}

func terminals(t *testing.T, m *machine) {
	s := m.spec("stty -echo 2>/dev/null; tty; read x; echo got $x; sleep 1000")
	s.Process.Terminal = true
	s.Process.ConsoleSize = &specs.Box{Height: 11, Width: 22}
	m.write(t, s)
	m.mustNot(t, "console-socket", "create", "a")
	m.gone(t, "a")
	path, master := console(t)
	m.must(t, "create", "--console-socket", path, "a")
	main := master()
	defer main.Close()
	if size, err := unix.IoctlGetWinsize(int(main.Fd()), unix.TIOCGWINSZ); err != nil || size.Row != 11 || size.Col != 22 {
		t.Errorf("size %+v, %v", size, err)
	}
	m.must(t, "start", "a")
	if line := readLine(t, main); line != "/dev/pts/0" {
		t.Errorf("main: %q", line)
	}
	path, master = console(t)
	m.must(t, "exec", "--tty", "--detach", "--pid-file", "/run/execpid", "--console-socket", path, "a", "sh", "-c", "tty; sleep 1000")
	second := master()
	defer second.Close()
	if line := readLine(t, second); line != "/dev/pts/1" {
		t.Errorf("exec: %q", line)
	}
	pid, err := os.ReadFile("/run/execpid")
	if err != nil || !strings.Contains(m.must(t, "ps", "-f", "json", "a"), string(pid)) {
		t.Errorf("exec's pid file: %q, %v", pid, err)
	}
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
}

func readLine(t *testing.T, f *os.File) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := f.Read(b); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if b[0] == '\n' {
			return strings.TrimSpace(string(line))
		}
	}
}

func foreground(t *testing.T, m *machine) {
	m.write(t, m.spec("echo out; echo err >&2; exit 5"))
	if r := m.do(t, "run", "a"); r.status != 5 || r.out != "out\n" || r.err != "err\n" {
		t.Errorf("%+v", r)
	}
	m.gone(t, "a")
	m.write(t, m.spec("trap 'echo trapped; exit 3' TERM; echo ready; while :; do sleep 0.01; done"))
	cmd := m.command(t, "run", "a")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.start(t, cmd)
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	out, err := io.ReadAll(stdout)
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 3 || string(out) != "trapped\n" || err != nil {
		t.Errorf("a passed signal: status %d, %q, %v", cmd.ProcessState.ExitCode(), out, err)
	}
	m.gone(t, "a")
	// A program that exists and cannot be executed fails in start.
	if err := os.WriteFile(m.bundle+"/rootfs/bin/broken", []byte("nothing"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := m.spec("")
	s.Process.Args = []string{"/bin/broken"}
	m.write(t, s)
	m.mustNot(t, "exec /bin/broken: exec format error", "run", "a")
	m.gone(t, "a")
}

func preserved(t *testing.T, m *machine) {
	s := m.spec("ls /proc/self/fd; cat <&4; echo $LISTEN_FDS $LISTEN_PID")
	m.write(t, s)
	var files []*os.File
	for _, text := range []string{"three", "four", "five"} {
		name := t.TempDir() + "/f"
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	cmd := m.command(t, "run", "--preserve-fds", "1", "a")
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1")
	// 5 is open too and not passed on; ls has it for the directory.
	if r := m.run(t, cmd); r.out != "0\n1\n2\n3\n4\n5\nfour1 1\n" {
		t.Errorf("%+v", r)
	}
	cmd = m.command(t, "run", "a")
	cmd.ExtraFiles = files
	s.Process.Args[2] = "ls /proc/self/fd"
	m.write(t, s)
	if r := m.run(t, cmd); r.out != "0\n1\n2\n3\n" {
		t.Errorf("none passed on: %+v", r)
	}
	m.gone(t, "a")
}

func hooks(t *testing.T, m *machine) {
	log := "/run/hooks.log"
	if err := os.WriteFile("/run/hook", []byte("#!/bin/busybox sh\nread -r state\necho $1 $(readlink /proc/self/ns/mnt) $state >> "+log+"\nexit $2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	hook := func(name string, status int) []specs.Hook {
		return []specs.Hook{{Path: "/run/hook", Args: []string{"hook", name, strconv.Itoa(status)}, Env: []string{"PATH=/bin"}}}
	}
	s := m.spec("sleep 1000")
	// As config.json has it, with the one that runs inside made of the root's programs.
	inside := []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "read -r s; echo startContainer $(readlink /proc/self/ns/mnt) $s > /tmp/inside"}, Env: []string{"PATH=/bin"}}}
	s.Hooks = &specs.Hooks{
		Prestart: hook("prestart", 0), CreateRuntime: hook("createRuntime", 0), CreateContainer: hook("createContainer", 0), //nolint:staticcheck // deprecated, and still sent
		StartContainer: inside, Poststart: hook("poststart", 0), Poststop: hook("poststop", 0),
	}
	m.write(t, s)
	m.must(t, "create", "a")
	m.must(t, "start", "a")
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.state(t, "a").Pid))
	if err != nil {
		t.Fatal(err)
	}
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(m.bundle + "/rootfs/tmp/inside")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 5 {
		t.Fatalf("%s", b)
	}
	lines = append(lines[:3:3], append([]string{strings.TrimSpace(string(got))}, lines[3:]...)...)
	for i, want := range [][3]string{
		{"prestart", ours, "creating"},
		{"createRuntime", ours, "creating"},
		{"createContainer", theirs, "creating"},
		{"startContainer", theirs, "created"},
		{"poststart", ours, "running"},
		{"poststop", ours, "stopped"},
	} {
		f := strings.SplitN(lines[i], " ", 3)
		var st specs.State
		if err := json.Unmarshal([]byte(f[2]), &st); err != nil || f[0] != want[0] || f[1] != want[1] || string(st.Status) != want[2] || st.ID != "a" {
			t.Errorf("%s: want %v, %v", lines[i], want, err)
		}
	}
	s.Hooks = &specs.Hooks{CreateRuntime: hook("bad", 4)}
	m.write(t, s)
	m.mustNot(t, "hooks.createRuntime[0] (/run/hook)", "create", "a")
	m.gone(t, "a")
}

func concurrent(t *testing.T, m *machine) {
	m.write(t, m.spec("sleep 1000"))
	var made, refused atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch r := m.do(t, "create", "a"); {
			case r.status == 0:
				made.Add(1)
			case strings.Contains(r.err, "already exists"), strings.Contains(r.err, "of another program"):
				refused.Add(1)
			default:
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 || refused.Load() != 7 {
		t.Errorf("%d made, %d refused", made.Load(), refused.Load())
	}
	if s := m.state(t, "a"); s.Status != specs.StateCreated {
		t.Errorf("%+v", s)
	}
	m.must(t, "delete", "a")
	m.gone(t, "a")
}

func failed(t *testing.T, m *machine) {
	for want, change := range map[string]func(*specs.Spec){
		"mounts[": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/no/such"})
		},
		"mount nosuchfs on /x":            func(s *specs.Spec) { s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "nosuchfs"}) },
		"executable file not found":       func(s *specs.Spec) { s.Process.Args = []string{"nosuch"} },
		"linux.intelRdt: not supported":   func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} },
		"limit pids.max":                  func(s *specs.Spec) { n := int64(1 << 50); s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &n} },
		"no such file or directory":       func(s *specs.Spec) { s.Root.Path = "nosuch" },
		"ociVersion":                      func(s *specs.Spec) { s.Version = "3.0.0" },
		"is the root":                     func(s *specs.Spec) { s.Linux.CgroupsPath = "/.." },
		"process.terminal: needs --conso": func(s *specs.Spec) { s.Process.Terminal = true },
	} {
		s := m.spec("true")
		change(s)
		m.write(t, s)
		m.mustNot(t, want, "create", "a")
		m.gone(t, "a")
	}
	// Somebody else's cgroup is not taken.
	m.write(t, m.spec("sleep 1000"))
	m.must(t, "create", "a")
	m.mustNot(t, "of another program", "create", "b")
	if s := m.state(t, "a"); s.Status != specs.StateCreated {
		t.Errorf("%+v", s)
	}
	m.must(t, "delete", "a")
	m.gone(t, "*")
}

func forced(t *testing.T, m *machine) {
	m.must(t, "delete", "--force", "nothing")
	m.write(t, m.spec("trap : TERM; sleep 1000 & sleep 1000"))
	for _, before := range [][]string{nil, {"start", "a"}, {"pause", "a"}} {
		m.must(t, "create", "a")
		if before != nil {
			m.must(t, "start", "a")
		}
		if before != nil && before[0] == "pause" {
			m.must(t, before...)
		}
		pid := m.state(t, "a").Pid
		m.must(t, "delete", "--force", "a")
		m.gone(t, "a")
		if st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(st), ") Z ") {
			t.Errorf("after %v it lives: %s", before, st)
		}
	}
	// Without a pid namespace of its own, others live on when it ends.
	s := m.spec("sleep 1000 & exec sleep 1001")
	s.Linux.Namespaces = s.Linux.Namespaces[1:]
	m.write(t, s)
	m.must(t, "run", "-d", "a")
	m.must(t, "kill", "--all", "a", "KILL")
	m.until(t, "a", specs.StateStopped)
	m.must(t, "delete", "a")
	m.gone(t, "a")
}

func reused(t *testing.T, m *machine) {
	m.write(t, m.spec("sleep 1000"))
	m.must(t, "run", "-d", "a")
	file := "/run/oci/a/state.json"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	r["pid"] = os.Getpid()
	other, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(file, other, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s := m.state(t, "a"); s.Status != specs.StateStopped || s.Pid != 0 {
		t.Errorf("%+v", s)
	}
	m.mustNot(t, "not running", "kill", "a", "KILL") // or this test would end here
	m.mustNot(t, "not running", "exec", "a", "true")
	m.must(t, "delete", "a") // the rest of its cgroup goes all the same
	m.gone(t, "a")
}

func logged(t *testing.T, m *machine) {
	m.mustNot(t, "no such file", "--log", "/run/log.json", "--log-format", "json", "--debug", "create", "--bundle", "/no/such", "a")
	b, err := os.ReadFile("/run/log.json")
	if err != nil {
		t.Fatal(err)
	}
	var line struct{ Level, Msg, Time string }
	if err := json.Unmarshal(b, &line); err != nil || line.Level != "error" || !strings.Contains(line.Msg, "/no/such/config.json") || line.Time == "" {
		t.Errorf("%s: %v", b, err)
	}
	if out := m.must(t, "--version"); out != "longshore-oci version test\nspec: "+specs.Version+"\n" {
		t.Errorf("%q", out)
	}
	m.must(t, "spec", "--bundle", "/run/bin")
	m.mustNot(t, "already", "spec", "--bundle", "/run/bin")
	var features struct{ Hooks []string }
	if err := json.Unmarshal([]byte(m.must(t, "features")), &features); err != nil || len(features.Hooks) != 6 {
		t.Errorf("%+v, %v", features, err)
	}
}
